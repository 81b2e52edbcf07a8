"""Trigger: when a run processes what the topics hold."""

from __future__ import annotations

from dataclasses import dataclass

from penstock import ConfigError, duration_ms

AVAILABLE_NOW, CONTINUOUS = "available_now", "continuous"


@dataclass(frozen=True)
class Trigger:
    """A trigger. `text` is as it was given. `interval_ms`: the time from one batch to the next, 0 for back to back.

    `drains`: the run ends when everything is processed that the topics held at its start. `is_continuous`: tasks poll,
    process and commit on their own.
    """

    text: str
    interval_ms: int = 0
    drains: bool = False
    is_continuous: bool = False

    @classmethod
    def of(cls, text: str) -> Trigger:
        """Return the trigger for "available_now", "continuous" or a duration; raise ConfigError for anything else."""
        if text == AVAILABLE_NOW:
            return cls(text, drains=True)
        if text == CONTINUOUS:
            return cls(text, is_continuous=True)
        try:
            return cls(text, duration_ms(text))
        except ConfigError:
            raise ConfigError(
                f'trigger {text!r}: expected "available_now", "continuous" or a time between batches such as "10s"'
            ) from None
