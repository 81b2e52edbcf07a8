"""What every driver uses: a task with its log, changelog and local state, and the commit between them."""
