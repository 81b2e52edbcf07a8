"""Settings and the application that has them: names, layers, where they come from, and which of them are secret."""
