"""Loss: a task host that was lost, as the proxy that met it tells."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Loss:
    """What happened to a host. `process`: its number, 0 for one that never listened.

    Several proxies may meet the loss of one host: each of Spark's workers has a connection of its own.
    """

    text: str
    process: int = 0

    def __str__(self) -> str:
        return self.text
