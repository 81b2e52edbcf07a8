"""Packages with plugins do not affect each other, or penstock: whatever they are named, and whatever their code does."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest

from penstock.errors import PluginError
from penstock.hooks import Component, Components, Registry, hookimpl

from .console import Console, install

FINE = """
@hookimpl
def penstock_serdes():
    return {"acme.fine": "acme.serdes:Fine"}
"""
SERDES = "from penstock.serde import StrSerde as Fine\n"


def installed(console: Console, name: str, plugin: str = FINE, *, point: str = "", **modules: str) -> dict[str, str]:
    """Install a package; `point` is the name of its entry point."""
    environment = install(console, name, plugin.replace("acme", name), **({"serdes": SERDES} | modules))
    if point:
        console.write(f"site/{name}-1.5.dist-info/entry_points.txt", f"[penstock]\n{point} = {name}.plugin\n")
    return environment


def test_entry_points_may_be_named_like_ours_and_like_those_of_others(console: Console) -> None:
    listed = json.loads(console.process("plugins", "--json")[0])
    ours = {(each["kind"], each["name"]) for each in listed["components"]}
    points = {"acme": "stores", "best": "cli", "cent": "contrib-sqlite", "dell": "plugin", "east": "plugin"}
    for name, point in points.items():
        environment = installed(console, name, point=point)
    found = json.loads(console.process("plugins", "--check", "--json", environment=environment)[0])
    assert found["broken"] == []
    theirs = {("serde", f"{name}.fine") for name in points}
    assert {(each["kind"], each["name"]) for each in found["components"]} == ours | theirs


def module(name: str, **hooks: Components) -> ModuleType:
    """Make a module with these hooks."""
    made = ModuleType(name)
    for hook, components in hooks.items():
        setattr(made, hook, hookimpl(lambda given=components: given))
    return made


def test_one_wrong_component_drops_itself_only() -> None:
    plugin = module(
        "acme", penstock_serdes={"acme.fine": "a:b", "acme.wrong": "a.b", 3: "a:b", "acme.none": None},  # type: ignore[dict-item]
        penstock_logs={"acme.log": "a:b"}, penstock_serde={"acme.other": "a:b"},
    )  # fmt: skip

    def takes_something(something: object) -> Components:
        return {}

    plugin.penstock_changelogs = hookimpl(takes_something)  # type: ignore[attr-defined]
    registry = Registry([("acme", "acme", "1", plugin)], {})
    assert registry.names("serde") == ["acme.fine"] and registry.names("log") == ["acme.log"]
    broken = registry.broken
    assert "there is no hook penstock_serde; did you mean" in broken.pop("acme 1 (acme)")
    assert "returned 'a.b' for 'acme.wrong'" in broken.pop("acme 1 (acme: serde acme.wrong)")
    assert "returned None for 'acme.none'" in broken.pop("acme 1 (acme: serde acme.none)")
    assert "returned the name 3, expected text" in broken.pop("acme 1 (acme: serde 3)")
    assert "takes no arguments" in broken.pop("acme 1 (acme: penstock_changelogs)")
    assert not broken
    with pytest.raises(PluginError, match="returned 'a.b' for 'acme.wrong'"):
        registry.find("serde", "acme.wrong")


def test_a_module_that_two_entry_points_name_is_one_plugin() -> None:
    plugin = module("acme", penstock_serdes={"acme.fine": "a:b"})
    registry = Registry([("one", "acme", "1", plugin), ("two", "acme", "1", plugin)], {})
    assert registry.names("serde") == ["acme.fine"]
    assert registry.broken == {"acme 1 (two)": "its module is that of entry point 'one': remove one of the two"}


EXITS = {
    "the module of hooks": (FINE + "import sys\nsys.exit(3)\n", SERDES, "acme 1.5 (acme)"),
    "a hook": (FINE.replace("return", "import sys; sys.exit(3); return"), SERDES, "acme 1.5 (acme: penstock_serdes)"),
    "a component": (FINE, "import sys\nsys.exit(3)\n", "acme 1.5 (serde acme.fine)"),
    "what makes it": (FINE, "import sys\ndef Fine():\n    sys.exit(3)\n", "acme 1.5 (serde acme.fine)"),
}


def test_sys_exit_of_a_plugin_ends_nothing(console: Console) -> None:
    for number, (plugin, serdes, _) in enumerate(EXITS.values()):
        environment = installed(console, f"acme{number}", plugin, serdes=serdes)
    out, _ = console.process("plugins", "--check", "--json", code=1, environment=environment)
    found = {each["plugin"]: each["error"] for each in json.loads(out)["broken"]}
    for number, (case, (_, _, where)) in enumerate(EXITS.items()):
        assert "sys.exit(3)" in found.pop(where.replace("acme", f"acme{number}"), ""), (case, found)
    assert not found


def test_what_a_plugin_prints_when_imported_goes_to_stderr(console: Console) -> None:
    """Stdout is a command's output, which others read."""
    environment = installed(console, "acme", FINE + "print('hello')\n", serdes=SERDES + "print('and hello')\n")
    out, err = console.process("plugins", "--json", environment=environment)
    assert "hello" not in out and "hello" in err
    console("topics", "create", "words", "--log", "local:log")
    out, err = console.process(
        "consume", "--log", "local:log", "words", "--value-serde", "acme.fine", environment=environment
    )
    assert out == "" and "and hello" in err


def test_a_component_that_exits_names_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "leaves_at_import.py").write_text("raise SystemExit(4)\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(PluginError, match=r"serde 'acme.x' of package acme 1 cannot be loaded .*sys.exit\(4\)"):
        Component("serde", "acme.x", "leaves_at_import:X", "acme", "acme", "1").load()
