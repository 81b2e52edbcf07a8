"""Plans of batches: which tasks run, up to which offsets, and at what time; the orders of the run to its planner."""
