"""Each test of Kafka goes one of both ways to librdkafka."""

from .ways import way

__all__ = ["way"]
