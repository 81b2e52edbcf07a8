"""What reads or rewrites committed state beside the task that owns it."""
