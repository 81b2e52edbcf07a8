"""Running the random histories of a contract suite."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test


def run_histories(machine: Callable[[], RuleBasedStateMachine], *, examples: int, steps: int) -> None:
    """Run a state machine `examples` times, for up to `steps` steps each, without a time limit."""
    run_state_machine_as_test(
        cast(Any, machine),  # any factory, contrary to its annotation
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
