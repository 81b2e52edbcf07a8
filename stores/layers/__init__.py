"""What lies between a backend's bytes and the store that a processor sees: commit buffer, TTL, types. May import core only."""
