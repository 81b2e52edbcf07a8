"""Keeps the documented import path of `Engine`, which is in engine/run/."""
