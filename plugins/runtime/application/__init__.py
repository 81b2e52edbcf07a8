"""An application as a whole, laid over its log: preparation, lease, what it saved, lag and reset."""
