"""The library deltalake: loading it, and its errors by what is to be done."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from penstock import SinkError, SinkRefusedError, SinkUnavailableError
from penstock.contrib.arrow.library import load as load_arrow
from penstock.support.packages import needed

SINK = "sink 'contrib.delta'"
_REFUSED = ("Invalid data found",)  # a constraint or an invariant of the table
_DENIED = (
    "ACCESS DENIED", "ACCESSDENIED", "FORBIDDEN", "UNAUTHORIZED", "INVALIDACCESSKEYID", "SIGNATUREDOESNOTMATCH",
    "NOSUCHBUCKET", "INVALID_GRANT", "PERMISSION DENIED", "PERMISSIONDENIED", "READ-ONLY FILE SYSTEM",
    "UNKNOWN SCHEME", "MISSING CONFIGURATION",
)  # fmt: skip
_STORE = re.compile(
    r"Generic \w+ error|ObjectStore|object store|LocalFileSystem|os error \d+|Os \{ code", re.IGNORECASE
)
"""Texts of errors that come from the store below the table."""
_LOG = re.compile(r"kernel error|not found|does not exist", re.IGNORECASE)
"""Texts of errors of a log that cannot be read, for instance as the directory is moved just now."""
_NOISE = re.compile(r"\x1b\[\d+m|↳|\s+\d+: <unknown>.*", re.DOTALL)
"""Colours, and stack traces of the library."""


def load() -> Any:
    """Return deltalake, which the extra `delta` installs, and pyarrow with it."""
    load_arrow(SINK, "delta")
    with needed(SINK, "delta"):
        import deltalake
        import deltalake.exceptions
    return deltalake


class Storage:
    """Where a table is, and how it is reached. It is pickled. `str` leaves out what may be a secret."""

    def __init__(self, uri: str, options: dict[str, str], shown: str) -> None:
        self.uri = uri
        self.options = options
        self._shown = shown

    def __str__(self) -> str:
        return self._shown

    def __repr__(self) -> str:
        return f"<{self}>"

    @contextmanager
    def explained(self, *, was_opened: bool, was_written: bool) -> Iterator[None]:
        """Raise errors of the library as those of a sink.

        `was_opened`, `was_written`: this process could read, and write, the table before: it is away now.
        """
        exceptions = load().exceptions
        try:
            yield
        except (SinkError, AssertionError):
            raise
        except exceptions.DeltaProtocolError as error:
            raise SinkError(f"the table has a feature that deltalake cannot write: {self.text_of(error)}") from error
        except Exception as error:
            raise self._explained(error, was_opened, was_written) from error
        except BaseException as error:
            if type(error).__name__ != "PanicException":
                raise
            raise SinkError(f"deltalake failed: {self.text_of(error)}") from error

    def _explained(self, error: Exception, was_opened: bool, was_written: bool) -> SinkError:
        text = self.text_of(error)
        if any(each in text for each in _REFUSED):
            return SinkRefusedError(text)
        if "Unsupported table features" in text:
            return SinkError(f"the table has a feature that deltalake cannot write: {text}")
        is_denied = any(each in text.upper() for each in _DENIED)
        if is_denied and not was_written:
            return SinkError(f"{text}; correct the table's URI, storage_options, or the rights")
        if is_denied or isinstance(error, OSError) or _STORE.search(text) or (was_opened and _LOG.search(text)):
            return SinkUnavailableError(text)
        return SinkError(f"{type(error).__name__}: {text}")

    def text_of(self, error: object) -> str:
        """Return the text of an error in one line, without values of options: URLs in it may have tokens."""
        text = " ".join(_NOISE.sub("", str(error)).split()).replace(self.uri, str(self))
        for name, value in self.options.items():
            if len(value) > 5 and re.search("key|secret|token|pass|sas|credential|account", name, re.IGNORECASE):
                text = text.replace(value, "***")
        return re.sub(r"(://[^\s?]*)\?[^\s)\"']+", r"\1?***", text)
