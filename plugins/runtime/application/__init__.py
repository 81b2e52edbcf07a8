"""What concerns a whole application, not one task: preparation, lease, saved program and stores, lag, reset."""
