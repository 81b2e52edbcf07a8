"""A serde in another process, whose strings and objects have other hashes than here."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from penstock import Serde

from .other_process import run_elsewhere


@dataclass
class Answer:
    """What the other process found."""

    form: str
    unreadable: str
    written: list[tuple[bytes | None, bytes | str]]
    """For each sample: the bytes of the value (None: it cannot be sent), and those of what its bytes are read as.

    A str is an error.
    """


def in_another_process(
    make: Callable[[], Serde[Any]], samples: Sequence[tuple[Any, bytes]], form: str, seed: str
) -> Answer:
    """Read and write the samples, values with their bytes, in a process whose hashes begin with `seed`."""
    cargo = make, [(_sent(value), written) for value, written in samples], form
    answer: Answer = run_elsewhere(_answer, cargo, seed, "a serde")
    return answer


def _sent(value: Any) -> bytes | None:
    import cloudpickle

    try:
        sent: bytes = cloudpickle.dumps(value)
    except Exception:
        return None
    return sent


def _answer(cargo: Any) -> Answer:
    make, samples, form = cargo
    unreadable = make().unreadable(form)
    serde = make()
    # In another order than there, and read before anything is written.
    again = [_again(make(), data) for _, data in reversed(samples)][::-1]
    own = [None if sent is None else serde.serialize(pickle.loads(sent)) for sent, _ in reversed(samples)][::-1]
    return Answer(serde.written_form(), unreadable, list(zip(own, again, strict=True)))


def _again(serde: Serde[Any], data: bytes) -> bytes | str:
    try:
        return serde.serialize(serde.deserialize(data))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
