"""The command `penstock acme`."""

import click


@click.command()
@click.argument("name", default="nobody")
def acme(name: str) -> None:
    """Greet NAME."""
    click.echo(f"Acme greets {name}.")
