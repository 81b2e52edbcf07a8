"""The parts of `kafka_broker`: the broker's jars, its settings, and its process."""
