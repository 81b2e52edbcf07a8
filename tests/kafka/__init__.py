"""Tests against a real Kafka broker."""
