"""An application as a whole on its log, not one task: preparation, lease, status, lag, reset, a moved changelog."""
