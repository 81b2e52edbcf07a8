"""An application as a whole on its log: preparation, lease, what it saved, lag and reset."""
