"""The pages of the console, for the server of queries and for applications that mount them; made when they are used."""

from __future__ import annotations

from collections.abc import Collection

from penstock.plugins.state.queries.http.guard import Address, checked_token
from penstock.plugins.state.queries.http.server import Pages, ServerOptions
from penstock.plugins.state.queries.queries import Queries
from penstock.plugins.state.queries.settings import check_libraries


def pages(queries: Queries, options: ServerOptions) -> Pages:
    """Return the pages of an application, as the options of a server say."""
    from .app import Console  # with the libraries of a server, which a run does not load

    return Console(queries, options)


def console_app(
    queries: Queries,
    *,
    token: str | None = None,
    actions_token: str | None = None,
    hosts: Collection[str] = (),
    stores: Collection[str] | None = None,
    excluded: Collection[str] = (),
    masked: Collection[str] = (),
) -> Pages:
    """Return the console of an application, to be mounted into an ASGI application; close it at the end.

    `token`: what readers must have; None: whoever reaches the pages may read them. `actions_token`: what is needed to
    replay dead letters; None: nobody may. `hosts`: names that requests may be for, beside those of this machine.
    `stores` (None: all), without `excluded`, are shown, those of `masked` without their values. Raises ConfigError for
    a token that is too short, and for stores that are not there; MissingPackageError where a library is missing.
    """
    check_libraries("the console")
    options = ServerOptions(
        Address("127.0.0.1", 0), checked_token(token, "token"), hosts=hosts, stores=stores, excluded=excluded,
        masked=masked, actions_token=checked_token(actions_token, "actions_token"),
    )  # fmt: skip
    return pages(queries, options)
