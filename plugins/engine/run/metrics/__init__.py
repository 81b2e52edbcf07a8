"""Serves the counts of a run to Prometheus. Imports the runtime, and prometheus-client only where it is asked for."""
