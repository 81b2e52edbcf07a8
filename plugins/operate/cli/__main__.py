"""Lets `python -m penstock.plugins.operate.cli` be the command line, where the script `penstock` is not on PATH."""

from __future__ import annotations

from . import main

main()
