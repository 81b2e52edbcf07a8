"""Layers between a backend's bytes and a processor's store: commit buffer, TTL, types. May import core only."""
