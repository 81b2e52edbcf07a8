"""The contract of commands finds each planted bug, and none in a right one and in some of ours."""

from __future__ import annotations

import pytest

from .command_contract import CommandContract

HERE = "tests.kit.planted_commands"


class TestRight(CommandContract):
    place = f"{HERE}:right"
    accepted = (["ann", "--upper"],)
    refused = {("a1",): "expected letters", (): "NAME"}


class TestDescribe(CommandContract):
    place = "penstock.plugins.operate.cli.describe:describe"
    accepted = (["examples/01_pipe.py:application"],)
    refused = {("no_such_module:program",): "no_such_module", (): "MODULE:ATTR"}


PLANTED = {
    f"{HERE}:no_help": "its_help",
    f"{HERE}:silent_option": "its_help",
    f"{HERE}:silent_argument": "its_help",
    f"{HERE}:no_command": "its_help",
    "tests.kit.planted_heavy_command:right": "it_is_found_quickly",
    f"{HERE}:raises": "what_it_refuses",
    f"{HERE}:succeeds": "what_it_refuses",
    f"{HERE}:writes_errors_to_stdout": "what_it_refuses",
    f"{HERE}:takes_any_option": "what_it_refuses",
    f"{HERE}:catches_everything": "what_it_accepts",
    f"{HERE}:fails_at_the_end": "what_it_accepts",
}


@pytest.mark.parametrize(("place", "rule"), PLANTED.items())
def test_planted_bugs_are_found(place: str, rule: str) -> None:
    given = {"place": place, "accepted": (["ann"],), "refused": {("a1",): "expected letters"}}
    with pytest.raises(AssertionError):
        getattr(type("Suite", (CommandContract,), given)(), f"test_{rule}")()
