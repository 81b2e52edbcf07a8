"""Tests of the sink to Delta Lake."""
