"""The interface to a source of rows that can be read again from a position: Source, SourceReader and RowBatch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from penstock import PenstockError

Row = Mapping[str, Any]
"""The values of a row by the names of its columns."""


class CopyError(PenstockError):
    """A copy cannot read its source, or its source is not the one that it has copied up to its position."""


@dataclass(frozen=True)
class RowBatch:
    """Rows in the order of their source, and the position behind them.

    `position` is JSON data, at most about 1,000 bytes. `texts` has the JSON text of each row where the source has it.
    `where` returns the place of the row with an index, for messages.
    """

    rows: Sequence[Row]
    position: Any
    where: Callable[[int], str]
    texts: Sequence[bytes] | None = None


class SourceReader(ABC):
    """Reads a source from a position on. One thread calls all methods."""

    waiting_for = ""
    """What the last `read` waited for, as there are rows that it could not return yet; "" if it did not."""

    poll_seconds: ClassVar[float] = 0.2
    """Seconds between two calls of `read` that return None: a look may be expensive."""

    @abstractmethod
    def read(self, most: int) -> RowBatch | None:
        """Return the next batch, which may be empty; None if there is none now.

        `most`: maximum number of rows, which a source may exceed where it cannot divide them. Raises CopyError if the
        source was changed before the position, and for a row that cannot be read; the rows before it have been
        returned.
        """

    @abstractmethod
    def close(self) -> None:
        """Release everything; idempotent."""


class Source(ABC):
    """Rows that can be read again in the same order, from a position that a reader returned."""

    kind: ClassVar[str]
    """The form of positions. A position of another kind is refused."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The default name of a copy of this source; "" if there is none."""

    def check(self) -> None:  # noqa: B027 (most sources are there)
        """Raise CopyError if there is no such source: then no topic is made for it."""

    @abstractmethod
    def open(self, position: Any, *, follow: bool) -> SourceReader:
        """Return a reader of the rows behind `position`; None: of all rows.

        `follow`: rows may be added while it reads, and it may be asked again after it returned None. Raises CopyError
        if the source is not as it was before the position.
        """
