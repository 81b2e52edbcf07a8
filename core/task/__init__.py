"""The task: one partition of one sub-topology, without I/O: no log, no clock, no thread."""
