"""Task hosts: one process for each slot of an executor, which owns the open tasks of that slot. No Spark in here."""
