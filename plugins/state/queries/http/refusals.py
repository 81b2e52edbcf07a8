"""Refused: a request that is answered with an error; and which answer each error of a query is."""

from __future__ import annotations

import logging

from penstock import ConfigError, LogError, PenstockError, StaleStoreError, StoreUnavailableError
from penstock.support.text_form import NoTextForm

_log = logging.getLogger("penstock.queries")

_LATER = "the store cannot answer now: its copy is being restored, is behind, or is on another machine; ask again later"


class Refused(Exception):
    """A request that is not answered. `code` is for programs, `message` for people; it has no paths and no secrets."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message.encode("utf-8", "backslashreplace").decode()


def bad(message: str) -> Refused:
    """Return the refusal of a request that does not follow the description."""
    return Refused(400, "bad_request", message)


def refusal(error: Exception) -> Refused:
    """Return the refusal that an error of a query is, whatever raised it. Details of this machine go to the log only.

    So does what a serde says of a row that it cannot read: it shows the value, which may be one that is masked. A key
    that a client gave and that does not fit is a ConfigError.
    """
    if isinstance(error, Refused):
        return error
    if not isinstance(error, PenstockError):  # a serde of another package may raise anything
        _log.error("a query failed", exc_info=error)
        return Refused(500, "failed", "the server failed; its log says why")
    if isinstance(error, NoTextForm):
        return Refused(409, "no_text_form", str(error))
    if isinstance(error, ConfigError):
        return bad(str(error))
    if isinstance(error, (StoreUnavailableError, StaleStoreError)):
        _log.debug("%s", error)
        return Refused(503, "unavailable", _LATER)
    _log.warning("a query failed: %s", error)
    if isinstance(error, LogError):
        return Refused(503, "unavailable", "the log cannot be reached; ask again later")
    return Refused(409, "not_readable", "the store cannot be read in this way; the log of the server says why")
