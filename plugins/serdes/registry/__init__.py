"""Serdes whose schemas are in a schema registry, in the wire format of Confluent's serializers."""
