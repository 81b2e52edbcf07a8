"""DropNullKeys: the filter in front of a repartition topic."""

from __future__ import annotations

from ..processor import Processor
from ..record import Record


class DropNullKeys(Processor):
    """Forwards records that have a key; the others would not meet their like in any partition."""

    def process(self, record: Record) -> None:
        if record.key is not None:
            self.context.forward(record)
