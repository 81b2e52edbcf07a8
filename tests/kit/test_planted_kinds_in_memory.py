"""The contract of kinds of stores restarts tasks, makes many calls and close ones: it finds each of these bugs."""

from __future__ import annotations

from typing import Any

import pytest

from . import planted_kinds_in_memory as kinds
from .planted_kinds_in_memory import IN_MEMORY
from .planted_kinds_in_memory import TestQueue as TestQueue
from .planted_kinds_in_memory import TestRecent as TestRecent
from .planted_kinds_in_memory import TestSeen as TestSeen


@pytest.mark.parametrize(("suite", "variant"), [pytest.param(*each, id=each[1]) for each in IN_MEMORY])
def test_a_planted_kind_is_found(suite: type, variant: str) -> None:
    made: Any = type("Suite", (suite,), {"spec": kinds.Spec("store", variant=variant), "shrinks": False})()
    test = made.test_many_calls if suite is TestQueue else made.test_restarts
    with pytest.raises(AssertionError, match=r"(?s)the store answers .*, and one that was never closed"):
        test()
