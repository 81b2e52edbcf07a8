"""What an operator uses: the command line, the console, and the names of settings."""
