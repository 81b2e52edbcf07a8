"""A task with its log, changelog and local state, and the commit between them; every driver uses it."""
