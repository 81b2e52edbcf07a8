"""An application as a whole on its log: preparation, lease, status, reset, and what one program saves for the next."""
