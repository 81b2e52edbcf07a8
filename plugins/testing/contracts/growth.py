"""Whether the state of a program stays bounded while the same records come again and again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from penstock import Processor, ValueTransformer

from ..driver import TopologyTestDriver
from .program_runs import Ends, Event, History, Sender, WatchedLog, do

_ROUNDS = (8, 16, 32)
_YEAR_MS = 366 * 86_400_000
_LITTLE = 8
"""So many bytes, or elements, more a round are no growth: numbers get more digits."""


def check_growth(events: Sequence[Event], make: Callable[..., TopologyTestDriver], ends: Ends) -> None:
    """Send `events` again and again, each time a year later; fail if state grows with each round."""
    made: list[Any] = []

    def noted(node: str, processor: Processor | ValueTransformer) -> Processor | ValueTransformer:
        made.append(processor)
        return processor

    sizes: list[dict[str, int]] = []
    log = WatchedLog(1)
    with make(processor_wrapper=noted, log=log, commit_every=max(1, len(events))) as driver:
        sender = Sender(driver, ends, 1, by_partition=True)
        for number in range(max(_ROUNDS)):
            later = [
                (topic, record._replace(timestamp=record.timestamp + number * _YEAR_MS)) for topic, record in events
            ]
            do(driver, sender.steps(History([later], [_YEAR_MS])))
            if number + 1 in _ROUNDS:
                sizes.append(
                    {
                        "bytes in its stores": driver._processes.stored_bytes(),
                        "bytes of schedules and other saved values": sum(log.engine_state_bytes.values()),
                        **{f"elements in attributes of {type(each).__name__}": _elements(each, 3) for each in made},
                    }
                )
    first, middle, last = sizes
    rounds = ", ".join(map(str, _ROUNDS))
    for what in last:
        early = (middle[what] - first[what]) / (_ROUNDS[1] - _ROUNDS[0])
        late = (last[what] - middle[what]) / (_ROUNDS[2] - _ROUNDS[1])
        assert late <= max(_LITTLE, early / 2), (
            f"the program has {first[what]}, {middle[what]} and {last[what]} {what} after {rounds} "
            "rounds of the same records, a year apart: let entries expire (`ttl`, `retention`) or delete them; say "
            f"`bounded = False` where they are to be kept. Records of a round: {list(events)}"
        )


def _elements(value: Any, depth: int) -> int:
    """Return how many elements the containers in a processor's attributes have."""
    if isinstance(value, dict):
        inside = [*value.values()]
    elif isinstance(value, list | set | tuple) or hasattr(value, "popleft"):
        inside = list(value)
    elif depth == 3:
        return sum(_elements(each, 2) for each in vars(value).values())
    else:
        return 0
    return len(inside) + (sum(_elements(each, depth - 1) for each in inside[:1000]) if depth > 1 else 0)
