"""The settings of the server of queries beside a run."""

from __future__ import annotations

from penstock import Setting, Settings
from penstock.settings.types import FLAG, optional, text
from penstock.support.packages import check_installed


def check_libraries(feature: str) -> None:
    """Raise MissingPackageError, naming `feature`, unless the libraries of a server and its pages are installed."""
    check_installed(feature, "serve", "anyio", "httptools", "jinja2", "starlette", "uvicorn")


def _needs_libraries(address: str | None) -> None:
    if address:
        check_libraries("setting 'queries'")


QUERIES = Setting(
    "queries",
    optional(text("HOST:PORT")),
    None,
    "Where a server beside the run, and on each machine of a cluster, answers queries: `127.0.0.1:8080`; None: none.",
    _needs_libraries,
)
APPLICATION_SERVER = Setting(
    "application_server",
    optional(text("HOST:PORT, or a URL")),
    None,
    "Where other machines reach `queries` of this one, such as `10.0.0.5:8080`; their servers forward what they lack.",
)
QUERIES_TOKEN = Setting(
    "queries_token",
    optional(text("a token of 16 or more characters")),
    None,
    "The token that each request to `queries` must have; needed where other machines reach the address.",
)
QUERIES_EXCLUDED = Setting(
    "queries_excluded",
    optional(text("names of stores, separated by commas")),
    None,
    "The stores that `queries` does not show, separated by commas.",
)
QUERIES_MASKED = Setting(
    "queries_masked",
    optional(text("names of stores, separated by commas")),
    None,
    "The stores whose values `queries` does not show, separated by commas.",
)
QUERIES_CONSOLE = Setting(
    "queries_console",
    FLAG,
    False,
    "Whether the server at `queries` has the pages of the console as well, at `/console/`.",
)
QUERIES_ACTIONS = Setting(
    "queries_actions",
    FLAG,
    False,
    "Whether requests to `queries` may act, such as replay dead letters, with the token `queries_actions_token`.",
)
QUERIES_ACTIONS_TOKEN = Setting(
    "queries_actions_token",
    optional(text("a token of 16 or more characters")),
    None,
    "The token of requests that act, if `queries_actions` is on; it is good for reading as well.",
)


def store_names(setting: Setting[str | None], settings: Settings) -> list[str]:
    """Return the names of stores that a setting lists."""
    return [name for each in (setting.of(settings) or "").split(",") if (name := each.strip())]
