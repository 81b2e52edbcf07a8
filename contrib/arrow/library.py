"""The library pyarrow, and the types of columns by their names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from penstock import ConfigError
from penstock.support.packages import needed

_TIMESTAMP = re.compile(r"timestamp(?:\[(s|ms|us|ns)(?:, ?tz=([^\]]+))?\])?")
_DECIMAL = re.compile(r"decimal(128|256)?\((\d+), ?(\d+)\)")
_NOT_NULL = " not null"


def load(wanted_by: str = "a sink of Arrow columns", extra: str = "parquet") -> Any:
    """Return pyarrow with its modules `compute`, `fs`, `ipc` and `parquet`; `extra` installs it."""
    with needed(wanted_by, extra):
        import pyarrow
        import pyarrow.compute
        import pyarrow.fs
        import pyarrow.ipc
        import pyarrow.parquet
    return pyarrow


def schema_of(where: str, columns: Mapping[str, Any]) -> Any:
    """Return the schema of columns by name: a type of pyarrow, or its name, with " not null" behind it or not."""
    pa, fields = load(), []
    for name, given in columns.items():
        is_text = isinstance(given, str)
        text = given.strip() if is_text else ""
        nullable = not text.lower().endswith(_NOT_NULL)
        type_ = _named(where, text if nullable else text[: -len(_NOT_NULL)].rstrip(), name) if is_text else given
        if not isinstance(type_, pa.DataType):
            raise ConfigError(f"{where}: column {name!r}: expected a type of pyarrow, or its name, found {given!r}")
        fields.append(pa.field(name, type_, nullable=nullable))
    return pa.schema(fields)


def _named(where: str, text: str, column: str) -> Any:
    pa = load()
    if found := _TIMESTAMP.fullmatch(text):
        return pa.timestamp(found[1] or "us", found[2] if found[1] else "UTC")
    if found := _DECIMAL.fullmatch(text):
        make = pa.decimal256 if found[1] == "256" else pa.decimal128
        return make(int(found[2]), int(found[3]))
    try:
        return pa.type_for_alias(text)
    except ValueError:
        raise ConfigError(
            f"{where}: column {column!r}: there is no type {text!r}; write a name such as 'int64', 'string', 'double', "
            "'timestamp' or 'decimal(10, 2)', or a type of pyarrow"
        ) from None
