"""Rows of Arrow columns from records, each value exact or refused: what sinks to files and tables of files share."""
