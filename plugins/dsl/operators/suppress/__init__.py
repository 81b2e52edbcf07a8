"""Tables whose updates are kept back."""
