"""`penstock pause` and `penstock resume`."""

from __future__ import annotations

from .applications import TARGET, counting
from .console import Console


def test_a_pause_of_all_and_of_one_sub_topology(console: Console) -> None:
    counting(console)
    for verb, options, paused in (
        ("pause", ["--subtopology", "1"], "1"),
        ("pause", [], "0, 1"),
        ("resume", ["--subtopology", "0"], "1"),
        ("resume", [], "none"),
    ):
        assert console(verb, TARGET, *options).stdout == f"counting: paused sub-topologies: {paused}\n"
    for verb in ("pause", "resume"):
        said = console(verb, TARGET, "--subtopology", "7", code=2).stderr
        assert "application 'counting' has no sub-topology 7; it has 0, 1" in said
