"""Random histories of a contract suite: how they are run, and the state of a task in their models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from penstock.store import Changes

State = dict[str, dict[bytes, bytes]]
"""All stores of a task, as a test's model holds them."""


def applied(state: Mapping[str, Mapping[bytes, bytes]], changes: Changes) -> State:
    """Return a state after `changes`."""
    result = {store: dict(rows) for store, rows in state.items()}
    for store, rows in changes.items():
        entries = result.setdefault(store, {})
        for key, value in rows:
            if value is None:
                entries.pop(key, None)
            else:
                entries[key] = value
    return result


def run_histories(machine: Callable[[], RuleBasedStateMachine], *, examples: int, steps: int) -> None:
    """Run a state machine `examples` times, for up to `steps` steps each, without a time limit.

    The histories are the same in each run: what a suite finds, it finds always.
    """
    run_state_machine_as_test(
        cast(Any, machine),  # any factory, contrary to its annotation
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
