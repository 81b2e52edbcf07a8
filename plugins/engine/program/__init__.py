"""An application as a whole on its log: preparation, lease, status, reset, and the saved description of its program."""
