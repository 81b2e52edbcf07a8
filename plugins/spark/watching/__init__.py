"""The driver's view of a run: reports and heartbeats of the task hosts, counts, rates and the status."""
