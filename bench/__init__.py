"""Measures speed and memory: `python -m bench` lists what there is."""
