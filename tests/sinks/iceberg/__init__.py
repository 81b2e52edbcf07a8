"""Tests of the sink to Apache Iceberg, on real tables of a SQL catalog."""
