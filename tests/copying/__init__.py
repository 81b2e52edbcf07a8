"""Tests of copies into a topic: sources, records, positions and kills."""
