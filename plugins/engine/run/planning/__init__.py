"""Plans of batches: the tasks, offsets and time of each; and the orders of the run to its planner."""
