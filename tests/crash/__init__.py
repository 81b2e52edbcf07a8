"""Kills and restarts an application at random moments: `python -m tests.crash`."""
