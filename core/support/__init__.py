"""Helpers that know nothing of streams: locks and private files, errors of the operating system, repeated log lines."""
