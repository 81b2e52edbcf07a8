"""The library pyiceberg: opening a catalog, and its errors by what is to be done, without secrets."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import unquote, urlsplit

from penstock import SinkError, SinkUnavailableError
from penstock.contrib.arrow.library import load as load_arrow
from penstock.support.packages import needed

SINK = "sink 'contrib.iceberg'"
_UNSAFE = {
    "hive": "a commit there is guarded by a lock that expires: a process that was frozen longer would overwrite the "
    "commits of others",
    "dynamodb": "pyiceberg cannot commit there",
    "bigquery_metastore": "pyiceberg cannot commit there",
    "noop": "pyiceberg cannot commit there",
}
"""By module of pyiceberg.catalog, why a catalog cannot have the table of a sink."""
_AWAY = frozenset(
    {
        "CommitFailedException", "CommitStateUnknownException", "ServerError", "ServiceUnavailableError",
        "TooManyRequestsError", "AuthorizationExpiredError", "OperationalError", "InterfaceError",
        "TimeoutError", "ValidationException", "EndpointConnectionError", "ConnectTimeoutError", "ReadTimeoutError",
        "ThrottlingException",
    }
)  # fmt: skip
"""Errors of pyiceberg, SQLAlchemy and botocore, by name, after which the same call may succeed later.

ValidationException is one of them: pyiceberg's retry of an append raises it if the snapshot from which the write began
was expired meanwhile (findings/iceberg_append_beside_expiry.sh). Nothing was written then.
"""
_NEVER_RIGHT = (FileNotFoundError, NotADirectoryError, PermissionError)
_DENIED = (
    "access_denied", "access denied", "no_such_bucket", "forbidden", "invalid_access_key", "authentication failed",
    "no password supplied", "does not exist", "no pg_hba.conf entry", "permission denied", "unable to open database",
    "no such table",
)  # fmt: skip
"""Texts of errors that a person has to repair, unless this process has used the table before."""
_SECRET = re.compile(r"password|passwd|secret|token|credential|key|sas|connection.string|authorization|cookie", re.I)
_used: set[str] = set()
"""Tables that this process has opened: after that, a catalog or a file system that refuses is away."""


def load() -> Any:
    """Return pyiceberg, with its modules `catalog` and `table`, which the extra `iceberg` installs."""
    load_arrow(SINK, "iceberg")
    with needed(SINK, "iceberg"):
        import pyiceberg
        import pyiceberg.catalog
        import pyiceberg.exceptions
        import pyiceberg.io.pyarrow
        import pyiceberg.table.update
        import pyiceberg.transforms
    return pyiceberg


class OpenCatalog:
    """An open catalog, and the text by which errors name the table."""

    def __init__(self, name: str, options: Mapping[str, Any], table: str) -> None:
        self._named = f"{name}:{table}"
        self._options = options
        with self.explained("open the catalog"):
            self.raw = load().catalog.load_catalog(name, **options)
            self._options = self.raw.properties
            for each in type(self.raw).__mro__:
                module = each.__module__.removeprefix("pyiceberg.catalog.")
                if module in _UNSAFE:
                    self.close()
                    raise SinkError(f"its catalog is of the type {module!r}, and {_UNSAFE[module]}: choose another one")

    def used(self) -> None:
        """Remember that this process could open the table."""
        _used.add(self._named)

    @contextmanager
    def explained(self, doing: str) -> Iterator[None]:
        """Raise errors of the block as those of a sink, without secrets."""
        try:
            yield
        except SinkError:
            raise
        except Exception as error:
            text = f"cannot {doing}: {type(error).__name__}: {' '.join(str(error).split())}"
            cleaned = without_secrets(text, self._options)
            kind = SinkUnavailableError if self._is_away(error, text.lower()) else SinkError
            # The error itself may have secrets, too, and a traceback shows it.
            raise kind(cleaned) from (error if _is_clean(error, self._options) else None)

    def _is_away(self, error: Exception, text: str) -> bool:
        if isinstance(error, OSError) or type(error).__name__ in _AWAY:  # errors of `requests` are OSErrors
            is_denied = isinstance(error, _NEVER_RIGHT) or any(each in text for each in _DENIED)
            return not is_denied or self._named in _used
        return False

    def close(self) -> None:
        """Close it; idempotent."""
        with suppress(Exception):
            self.raw.close()


def without_secrets(text: str, options: Mapping[str, Any]) -> str:
    """Return a text in which the secrets of a catalog's options are hidden."""
    for secret in sorted(_secrets(options), key=len, reverse=True):
        text = text.replace(secret, "***")
    return text


def _secrets(options: Mapping[str, Any]) -> set[str]:
    found = set()
    for name, value in options.items():
        text = str(value)
        if _SECRET.search(name) and len(text) > 2:
            found.add(text)
            # "client:secret", "Bearer secret"
            found.update(part for part in re.split(r"[:\s]", text) if len(part) > 3)
        with suppress(ValueError):
            parts = urlsplit(text)
            if parts.password:
                found |= {parts.password, unquote(parts.password)}
            found.update(
                each for pair in parts.query.split("&") for key, _, each in [pair.partition("=")]
                if each and _SECRET.search(key)
            )  # fmt: skip
    return found


def _is_clean(error: BaseException | None, options: Mapping[str, Any]) -> bool:
    while error is not None:
        if without_secrets(str(error), options) != str(error):
            return False
        error = error.__cause__ or error.__context__
    return True
