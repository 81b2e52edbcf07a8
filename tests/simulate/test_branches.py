"""The list of branches that no history reaches: few histories reach none, and the report tells what it lacks."""

from __future__ import annotations

from penstock.plugins.testing.simulation.contract import soak

from .branches import Branch, Reached, listed, reached_by, report, unknown
from .programs import CONTRACTS


def test_what_cannot_be_reached_is_not_reached() -> None:
    def run() -> None:
        for name in ("counts, with replicas, changelog directory:", "joined", "counts, after tries"):
            soak(CONTRACTS[name], range(3))

    found, known = reached_by(run), listed()
    assert len(found.reached) > 500
    assert [each for each in report(found, known) if each.startswith("listed")] == []


def test_a_branch_that_is_missed_has_to_be_listed() -> None:
    file = "plugins/engine/task/commit.py"
    missed, other = (Branch(file, "TaskCommits.take", "if outputs:", to) for to in ("self.send(outputs)", "the end"))
    found = Reached({f"{file}: TaskCommits.take: *"}, [missed, other])
    assert list(report(found, {str(other): "why"})) == [f"commit: not reached, and not listed: {missed}"]
    assert list(report(found._replace(reached={str(other)}), {str(missed): "", str(other): ""})) == [
        f"listed in unreached.toml as one that cannot be reached, and reached: {other}"
    ]
    gone = [f"{file}: TaskCommits.send: *", f"{file}: TaskCommits.take: if it_was: -> return"]
    assert unknown(found, dict.fromkeys([str(missed), *gone], "")) == gone
