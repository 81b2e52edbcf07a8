"""What `kafka_broker` is made of: the broker's jars, its settings, and its process."""
