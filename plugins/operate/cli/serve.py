"""The verb `serve`: an HTTP server for the stores of an application, on any machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock import ConfigError

from .command import verb
from .failures import ended_by_sigterm
from .options import application_options, find_application
from .output import note

if TYPE_CHECKING:
    from penstock import Application
    from penstock.plugins.state.queries.queries import Queries

_file = click.Path(exists=True, dir_okay=False, path_type=Path)
_TOKEN_VARIABLE, _ACTIONS_VARIABLE = "PENSTOCK_QUERIES_TOKEN", "PENSTOCK_QUERIES_ACTIONS_TOKEN"


@verb(
    ("For programs on this machine", "penstock serve shop:application"),
    ("Where the tasks run: their local state, without a copy", "penstock serve shop:application --local --listen 127.0.0.1:8081"),
    ("For others, with a token and TLS", "penstock serve shop:application --listen 0.0.0.0:8443 --token-file token --tls-cert cert.pem --tls-key key.pem"),
    ("With pages for a browser, at http://127.0.0.1:8080/console/", "penstock serve shop:application --console"),
    ("Two stores, one without its values", "penstock serve shop:application --store totals --store people --mask people"),
)  # fmt: skip
@click.option("--listen", metavar="HOST:PORT", default="127.0.0.1:8080", show_default=True, help="Where it listens.")
@click.option(
    "--local",
    is_flag=True,
    help="Read the local state of the tasks that run on this machine, with the same state_dir; else replicas, which "
    "this process keeps up to date from the changelog.",
)
@click.option("--store", "stores", metavar="STORE", multiple=True, help="Only this store; repeatable. [default: all]")
@click.option("--exclude", "excluded", metavar="STORE", multiple=True, help="All but this store; repeatable.")
@click.option("--mask", "masked", metavar="STORE", multiple=True, help="Show no values of this store; repeatable.")
@click.option(
    "--directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where the replicas are; one process at a time has it. [default: under state_dir]",
)
@click.option(
    "--token-file",
    type=_file,
    help=f"A file with the token that each request must have. Needed where others reach the address. [env var: "
    f"{_TOKEN_VARIABLE}, with the token itself]",
)
@click.option("--console", is_flag=True, help="Show pages of the application as well, at /console/.")
@click.option(
    "--actions-token-file",
    type=_file,
    help="A file with the token that requests must have which act, such as a replay of dead letters; without it nobody "
    f"may. [env var: {_ACTIONS_VARIABLE}, with the token itself]",
)
@click.option("--tls-cert", "certificate", type=_file, help="A certificate (PEM), to serve https; with --tls-key.")
@click.option("--tls-key", "private_key", type=_file, help="Its private key (PEM).")
@click.option(
    "--allow-host", "hosts", metavar="NAME", multiple=True, help="A name that requests may be for; repeatable."
)
@application_options
def serve(
    target: str,
    listen: str,
    local: bool,
    stores: tuple[str, ...],
    excluded: tuple[str, ...],
    masked: tuple[str, ...],
    directory: Path | None,
    token_file: Path | None,
    console: bool,
    actions_token_file: Path | None,
    certificate: Path | None,
    private_key: Path | None,
    hosts: tuple[str, ...],
    **where: Any,
) -> None:
    """Answer queries of the stores of MODULE:ATTR over HTTP, until Ctrl-C or SIGTERM.

    Answers are JSON, and of committed versions only; /openapi.json describes the requests. It works from any machine
    that reaches the log and the changelog, beside a running application, which does not notice it.
    It needs the extra `serve`.
    """
    from penstock.plugins.operate.console.pages import pages
    from penstock.plugins.state.queries.http.guard import Address
    from penstock.plugins.state.queries.http.server import Server, ServerOptions, open_socket, url_of
    from penstock.plugins.state.queries.settings import QUERIES_EXCLUDED, QUERIES_MASKED, check_libraries, store_names

    check_libraries("penstock serve")
    application = find_application(target, **where)
    # What the settings hide from a server of the run, this one hides, too.
    excluded = (*excluded, *store_names(QUERIES_EXCLUDED, application.settings))
    masked = (*masked, *store_names(QUERIES_MASKED, application.settings))
    if (certificate is None) != (private_key is None):
        raise ConfigError("--tls-cert and --tls-key: give both or none")
    options = ServerOptions(
        Address.of(listen, "--listen"), _read_token(token_file, application), certificate, private_key,
        hosts, stores or None, excluded, masked,
        _token(actions_token_file, "--actions-token-file", _ACTIONS_VARIABLE), pages if console else None,
    )  # fmt: skip
    with (
        ended_by_sigterm(),
        open_socket(options, "--listen") as listening,
        _opened(application, options, directory, local=local) as queries,
    ):
        server = Server(queries, options, listening)
        url = url_of(listening, options)
        note(f"{application.id} answers at {url}{f', with its console at {url}/console/' if console else ''}")
        server.run()


def _opened(application: Application, options: Any, directory: Path | None, *, local: bool) -> Queries:
    from penstock.plugins.state.queries.queries import Queries

    if local:
        if directory is not None:
            raise ConfigError("--directory: with --local there are no replicas: leave it out")
        return Queries.of_this_machine(application)
    followed = Queries.followed_stores(application)
    names = [
        each
        for each in options.names(Queries.stores_of(application))
        if each in followed or each in (options.stores or ())
    ]
    # A server of a run (the setting `queries`) may be beside this one, with replicas of its own.
    return Queries.from_changelog(application, stores=names, directory=directory, reader="serve")


def _read_token(file: Path | None, application: Application) -> str | None:
    """Return the token of a file or of the environment, else that of the setting `queries_token`."""
    from penstock.plugins.state.queries.http.guard import checked_token
    from penstock.plugins.state.queries.settings import QUERIES_TOKEN

    found = _token(file, "--token-file", _TOKEN_VARIABLE)
    return checked_token(QUERIES_TOKEN.of(application.settings), "setting 'queries_token'") if found is None else found


def _token(file: Path | None, option: str, variable: str) -> str | None:
    """Return the token of a file or of the environment. Raises ConfigError for one that cannot be used."""
    from penstock.plugins.state.queries.http.guard import checked_token

    if file is None:
        token = os.environ.get(variable)
        source = f"environment variable {variable}"
    else:
        try:
            token = file.read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{option} {file}: it cannot be read: {error}") from error
        source = f"{option} {file}"
    return checked_token(token, source)
