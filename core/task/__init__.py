"""The task: one partition of one sub-topology as a pure machine, without threads, sockets or a clock of its own."""
