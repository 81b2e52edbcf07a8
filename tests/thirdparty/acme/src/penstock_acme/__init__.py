"""What this package brings to penstock, by name; nothing is imported before it is used."""

from penstock.hooks import Components, hookimpl


@hookimpl
def penstock_processors() -> Components:
    """Name the processors; one is an operator."""
    return {"acme.count": "penstock_acme.count:Count", "acme.dedupe": "penstock_acme.dedupe:Dedupe"}


@hookimpl
def penstock_store_backends() -> Components:
    """Name the store backend."""
    return {"acme.sqlite": "penstock_acme.sqlite:SqliteBackend"}


@hookimpl
def penstock_store_kinds() -> Components:
    """Name the kind of store."""
    return {"acme.set": "penstock_acme.sets:build_set"}


@hookimpl
def penstock_serdes() -> Components:
    """Name the serdes; one takes an argument."""
    return {"acme.framed": "penstock_acme.framed:framed", "acme.upper": "penstock_acme.upper:UpperSerde"}


@hookimpl
def penstock_engines() -> Components:
    """Name the engine."""
    return {"acme.audited": "penstock_acme.engine:AuditedEngine"}


@hookimpl
def penstock_settings() -> Components:
    """Name the setting."""
    return {"acme.ignore_case": "penstock_acme.settings:IGNORE_CASE"}


@hookimpl
def penstock_changelogs() -> Components:
    """Name a changelog of each type."""
    return {"acme.history": "penstock_acme.history:SqliteHistory", "acme.topics": "penstock_acme.topics:RowTopics"}


@hookimpl
def penstock_renderers() -> Components:
    """Name the renderer."""
    return {"acme.names": "penstock_acme.names:names"}


@hookimpl
def penstock_cli_commands() -> Components:
    """Name the command."""
    return {"acme": "penstock_acme.command:acme"}
