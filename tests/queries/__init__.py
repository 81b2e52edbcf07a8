"""Queries of stores, in process and over HTTP."""
