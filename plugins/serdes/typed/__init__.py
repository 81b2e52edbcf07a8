"""Serdes of a program's own types: as msgspec and pydantic write them, and whether a changed type reads old rows."""
