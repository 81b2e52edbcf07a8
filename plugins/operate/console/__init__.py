"""The console: what an application does, on pages for a browser and in a terminal."""
