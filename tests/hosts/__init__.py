"""The task hosts, without Spark."""
