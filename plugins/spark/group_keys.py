"""Placement: chooses the group keys of tasks and slots, so that Spark's shuffle spreads tasks evenly and keeps them."""

from __future__ import annotations

from functools import cache
from itertools import count

from penstock import TaskId
from penstock.plugins.engine.run.slots import slot

SPREAD = 480
"""The tasks of `transform` are spread evenly over any number of shuffle partitions that divides this.

Never change it: checkpoints have the group keys.
"""
_MASK = 0xFFFFFFFF
_SEED = 42
_KEYS_PER_TASK = 1 << 16


def group_key(task_id: TaskId, partitions: int) -> int:
    """Return the 64-bit key of a task's rows, which Spark's shuffle sends to `slot(task_id, partitions)`.

    A function of the task id alone: tasks that come or go move no other. No two tasks share a key.
    """
    wanted = slot(task_id, partitions)
    first = (task_id.subtopology << 40) + task_id.partition * _KEYS_PER_TASK
    return next(key for key in range(first, first + _KEYS_PER_TASK) if spark_hash(key) % partitions == wanted)


@cache
def slot_key(slot_number: int, partitions: int) -> int:
    """Return the 64-bit key of a slot's row, which Spark's shuffle sends to the shuffle partition of that number."""
    return next(key for key in count() if spark_hash(key) % partitions == slot_number)


def spark_hash(value: int) -> int:
    """Return Spark SQL's `hash(value)` of one BIGINT (Murmur3_x86_32 with seed 42), signed.

    >>> spark_hash(1)
    -1712319331
    """
    low, high = value & _MASK, (value >> 32) & _MASK
    mixed = _mix(_mix(_SEED, low), high) ^ 8
    mixed ^= mixed >> 16
    mixed = mixed * 0x85EBCA6B & _MASK
    mixed ^= mixed >> 13
    mixed = mixed * 0xC2B2AE35 & _MASK
    mixed ^= mixed >> 16
    return mixed - (1 << 32) if mixed >> 31 else mixed


def _mix(hashed: int, word: int) -> int:
    word = _rotate(word * 0xCC9E2D51 & _MASK, 15) * 0x1B873593 & _MASK
    return (_rotate(hashed ^ word, 13) * 5 + 0xE6546B64) & _MASK


def _rotate(word: int, bits: int) -> int:
    return (word << bits | word >> (32 - bits)) & _MASK
