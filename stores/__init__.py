"""State store backends, and the layers around them. Imports core."""
