"""Real Kafka brokers for tests and demos; `python -m penstock.testing.kafka_broker` runs one until Ctrl-C."""

import sys

from penstock.plugins.testing.kafka_broker import KafkaBroker, KafkaCluster, main

__all__ = ["KafkaBroker", "KafkaCluster"]

if __name__ == "__main__":
    sys.exit(main())
