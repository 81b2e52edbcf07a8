"""Runs recorded cases of the real Kafka Streams against penstock: `python -m tests.conformance DIR`."""
