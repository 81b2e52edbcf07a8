"""Settings and the application that has them: names, layers, sources and secrets."""
