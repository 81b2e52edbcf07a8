"""Helpers below all else: names, users' functions, locks, private files, errors of the system, repeated log lines."""
