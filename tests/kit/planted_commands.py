"""Commands with one planted bug each, and a right one."""

from __future__ import annotations

import sys

import click

from penstock import ConfigError


def _work(name: str, upper: bool) -> None:
    if not name.isalpha():
        raise ConfigError(f"name {name!r}: expected letters")
    for number in range(3000):
        click.echo(f"{name.upper() if upper else name} {number}")


@click.command()
@click.argument("name")
@click.option("--upper", is_flag=True, help="Write capital letters.")
def right(name: str, upper: bool) -> None:
    """Write NAME three thousand times."""
    _work(name, upper)


@click.command()
@click.argument("name")
def no_help(name: str) -> None:
    _work(name, False)


@click.command()
@click.argument("name")
@click.option("--upper", is_flag=True)
def silent_option(name: str, upper: bool) -> None:
    """Write NAME three thousand times."""
    _work(name, upper)


@click.command()
@click.argument("name")
def silent_argument(name: str) -> None:
    """Write something three thousand times."""
    _work(name, False)


@click.command()
@click.argument("name")
def raises(name: str) -> None:
    """Write NAME three thousand times."""
    int(name) if not name.isalpha() else _work(name, False)


@click.command()
@click.argument("name")
def succeeds(name: str) -> None:
    """Write NAME three thousand times."""
    if name.isalpha():
        _work(name, False)
    else:
        click.echo(f"name {name!r}: expected letters", err=True)


@click.command()
@click.argument("name")
def writes_errors_to_stdout(name: str) -> None:
    """Write NAME three thousand times."""
    if not name.isalpha():
        click.echo(f"name {name!r}: expected letters")
        sys.exit(2)
    _work(name, False)


@click.command()
@click.argument("name")
def catches_everything(name: str) -> None:
    """Write NAME three thousand times."""
    try:
        _work(name, False)
    except Exception as error:
        click.echo(f"Error: {error!r}", err=True)
        sys.exit(2)


@click.command()
@click.argument("name")
def fails_at_the_end(name: str) -> None:
    """Write NAME three thousand times."""
    _work(name, False)
    sys.exit(3)


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("name", nargs=-1)
def takes_any_option(name: tuple[str, ...]) -> None:
    """Write NAME three thousand times."""
    _work(" ".join(name).replace("-", ""), False)


def no_command(name: str) -> None:
    """Write NAME three thousand times."""
