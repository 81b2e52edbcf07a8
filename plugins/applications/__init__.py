"""An application as a whole on its log, not one task: preparation, lease, status, reset, changelog, dead letters."""
