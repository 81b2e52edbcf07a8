"""Tests of the sink to Parquet files."""
