"""Targets outside of the log: the engine's part, the contract, PostgreSQL."""
