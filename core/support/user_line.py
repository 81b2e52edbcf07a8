"""The line of the user's own code that an error came from."""

from __future__ import annotations

import os
import sys
import sysconfig
import traceback
from typing import NamedTuple

_OURS = __name__.partition(".")[0]
_CALLED = {
    "avro", "confluent_kafka", "fastavro", "httpcore", "httpcore2", "httpx", "httpx2", "jsonschema", "lmdb", "msgpack",
    "msgspec", "orjson", "pyarrow", "pydantic",
}  # fmt: skip
"""Libraries that penstock itself calls."""
_NOBODYS = (sys.stdlib_module_names - {"__main__"}) | {_OURS, "click", "pluggy", "py4j", "pyspark"} | _CALLED
"""Packages that call the user's code or are called without it: users cannot fix their lines."""

_LIBRARIES = tuple({sysconfig.get_path(name) + os.sep for name in ("purelib", "platlib")})


class UserLine(NamedTuple):
    """A line of the user's code; as text "orders.py, line 5"."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{os.path.basename(self.file)}, line {self.line}"


def user_line(error: BaseException) -> UserLine | None:
    """Return the innermost line of the user's code that raised `error` or its cause, if there is one.

    A line of another library counts where no other does: it may be the user's own package, installed.
    """
    own = library = None
    each: BaseException | None = error
    seen: set[int] = set()
    while each is not None and id(each) not in seen:
        seen.add(id(each))
        for frame, line in traceback.walk_tb(each.__traceback__):
            if str(frame.f_globals.get("__name__", "")).partition(".")[0] in _NOBODYS:
                continue
            place = UserLine(frame.f_code.co_filename, line, frame.f_code.co_name)
            if place.file.startswith(_LIBRARIES):
                library = place
            else:
                own = place
        each = each.__cause__
    return own or library


def at_user_line(error: BaseException) -> str:
    """Return the end of a message, " (orders.py, line 5)"; "" if no code of the user raised the error."""
    place = user_line(error)
    return "" if place is None else f" ({place})"
