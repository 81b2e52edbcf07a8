"""The verb `plugins`: lists the plugins of installed packages."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import click

from penstock.support.printable import printable

from .command import verb, verbose_option
from .failures import FAILED
from .output import note, print_json, print_table


@verb(
    ("Everything", "penstock plugins"),
    ("The serdes that --key-serde may name", "penstock plugins --kind serde"),
    ("Look at each one, to find those that would fail when used", "penstock plugins --check"),
    target=False,
)
@click.option(
    "--kind",
    metavar="KIND",
    help="Only this kind: processor, 'store backend', 'store kind', serde, log, changelog, sink, renderer, engine, "
    "companion, 'metrics reporter', setting, 'settings vocabulary' or command.",
)
@click.option(
    "--check",
    is_flag=True,
    help="Import each component, look at what it is, and for plugins in a wrong entry-point group; exit code 1 if one "
    "is broken. One that needs a package which is not installed is named, and is not broken.",
)
@click.option("--trace", is_flag=True, help="Also write, to stderr, each step of reading the plugins.")
@click.option("--json", "as_json", is_flag=True, help="A JSON object with 'components' and 'broken'.")
@click.pass_context
@verbose_option
def plugins(ctx: click.Context, kind: str | None, check: bool, trace: bool, as_json: bool) -> None:
    """List installed plugins.

    Processors, store backends and kinds, serdes, logs, changelogs, sinks, renderers, engines, companions, metrics reporters, settings, vocabularies of settings and commands.

    A plugin comes with any package that has an entry point in the group `penstock`. What cannot be
    loaded is listed with the reason, and harms nothing else.
    """
    from penstock import ConfigError, MissingPackageError, PluginError
    from penstock.hooks import KINDS, read_plugins, registry
    from penstock.support.packages import DISTRIBUTION, other_distribution

    from .plugin_checks import check_component, costly_plugins, misplaced_plugins, plugins_for_another_version

    if kind is not None and kind not in KINDS:
        raise ConfigError(f"--kind {kind!r}: expected one of {', '.join(map(repr, KINDS))}")
    found = read_plugins(lambda text: click.echo(printable(text), err=True)) if trace else registry()
    components: list[dict[str, Any]] = []
    lacking: list[str] = []
    broken = [{"plugin": which, "error": why} for which, why in sorted(found.broken.items())]
    for component in sorted(found.components.values(), key=lambda each: (list(KINDS).index(each.kind), each.name)):
        if kind is not None and component.kind != kind:
            continue
        row = {
            "kind": component.kind,
            "name": component.name,
            "package": component.package,
            "version": component.package_version,
            "target": component.target if isinstance(component.target, str) else repr(component.target),
        }
        components.append(row)
        if kind == "setting":
            with suppress(PluginError):
                row["text"] = getattr(component.load(), "text", "")
        if check:
            try:
                check_component(component)
            except MissingPackageError as error:
                row["needs"] = str(error)
                lacking.append(f"{component.title}: {error}")
            except PluginError as error:
                row["error"] = str(error.__cause__ or error)
                plugin = f"{component.package} {component.package_version} ({component.kind} {component.name})"
                broken.append({"plugin": plugin, "error": str(error)})
    if check:
        if (other := other_distribution()) is not None:
            broken.append({"plugin": DISTRIBUTION, "error": other})
        broken += (
            {"plugin": which, "error": why}
            for which, why in (*misplaced_plugins(), *plugins_for_another_version(), *costly_plugins())
        )
    if as_json:
        print_json({"components": components, "broken": broken})
    else:
        columns = ["kind", "name", "package", "version", *(["text"] if kind == "setting" else [])]
        print_table(columns, [[row.get(column, "") for column in columns] for row in components])
        for text in lacking:
            note(f"not installed: {text}")
        for each in broken:
            told = printable(f"{each['plugin']}: {each['error']}")
            click.echo(click.style("broken: ", fg="red", bold=True) + told, err=True)
    if check and broken:
        ctx.exit(FAILED)
