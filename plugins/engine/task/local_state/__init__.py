"""The stores of this host: a task's, restored from the changelog or refilled, and copies of global stores."""
