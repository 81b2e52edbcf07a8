"""Entry: an entry of a store, as a server answers it; and the error of a query."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock import PenstockError, SerdeError
from penstock.support.text_form import from_json


class QueryError(PenstockError):
    """A server refused a query, or cannot be reached. `status`: of HTTP, 0 without an answer; `code`: the server's."""

    def __init__(self, message: str, status: int = 0, code: str = "unreachable") -> None:
        super().__init__(message)
        self.status = status
        self.code = code


@dataclass(frozen=True)
class Entry:
    """An entry of a store, with key and value as `Store` says. Times are in ms.

    `timestamp` and `headers`: of its value, if the store was asked for them; of a version, when it began. `valid_to`:
    when a version ended, -1 for the latest, None in a change. `start` and `end`: of a window or session.
    """

    key: Any
    value: Any
    timestamp: int | None = None
    valid_to: int | None = None
    headers: Any = ()
    start: int | None = None
    end: int | None = None

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Entry:
        """Return the entry that an answer has. Raises QueryError for one that this version does not read."""
        try:
            return cls(**{**data, "key": from_json(data["key"]), "value": from_json(data["value"])})
        except (SerdeError, TypeError, LookupError) as error:
            raise QueryError(f"the server's answer is no entry: {error}", 200, "no_entry") from error
