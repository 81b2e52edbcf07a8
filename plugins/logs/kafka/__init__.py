"""The log on a Kafka cluster, through confluent-kafka (librdkafka): `kafka:HOST:PORT[,HOST:PORT]`."""
