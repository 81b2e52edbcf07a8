"""StoreTraits: what a declared store tells the engine about its content."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class StoreTraits:
    """What the engine has to know of a store's content.

    `timestamped`: values are envelopes with timestamps. `expires`: entries may carry an expiry. `is_indexed`: the store
    has an index beside it, `StoreContext.index`, also if its entries do not expire. `fixed_options`: numbers that the
    form of its keys depends on; those of the program that declared the store first hold for as long as it has content.
    `form`: what else a program must not change while there is content, in words; it is part of the store's kind.
    `topic_config`: settings of its changelog topic beside the usual ones, as Kafka names them. `is_extra`: an operator
    keeps it beside the stores that Kafka Streams has there, and `describe()` leaves it out: so both describe a program
    alike.
    """

    timestamped: bool = False
    expires: bool = False
    is_indexed: bool = False
    fixed_options: Mapping[str, int] = field(default_factory=dict)
    form: str = ""
    topic_config: Mapping[str, str] = field(default_factory=dict)
    is_extra: bool = False

    @property
    def has_index(self) -> bool:
        """Whether the store has an index beside it."""
        return self.is_indexed or self.expires
