"""`penstock plugins`."""

from __future__ import annotations

import re
from importlib.metadata import version

import pytest

from penstock.errors import PluginError
from penstock.hooks import Components, Registry, hookimpl

from .console import Console, install


def test_our_own_come_in_by_the_same_door(console: Console) -> None:
    found = console.json("plugins", "--json")
    assert found["broken"] == []
    by_name = {(each["kind"], each["name"]): each for each in found["components"]}
    assert by_name["log", "local"]["package"] == "penstock"
    assert by_name["log", "local"]["version"] == version("penstock")
    assert by_name["command", "consume"]["target"] == "penstock.plugins.cli.consume:consume"
    assert ("serde", "json") in by_name


def test_the_table(console: Console) -> None:
    lines = console("plugins").stdout.splitlines()
    assert re.fullmatch(r"KIND +NAME +PACKAGE +VERSION", lines[0])
    assert any(re.fullmatch(r"command +run +penstock +\S+", line) for line in lines)


def test_one_kind(console: Console) -> None:
    kinds = {each["kind"] for each in console.json("plugins", "--kind", "serde", "--json")["components"]}
    assert kinds == {"serde"}
    assert (
        "--kind 'serdes': expected one of 'processor', 'store backend', 'store kind', 'serde'"
        in console("plugins", "--kind", "serdes", code=2).stderr
    )


def test_all_of_ours_can_be_loaded(console: Console) -> None:
    assert console.json("plugins", "--check", "--json")["broken"] == []


def test_plugins_of_others_are_listed_and_checked(console: Console) -> None:
    environment = install(
        console,
        "acme",
        "@hookimpl\ndef penstock_serdes():\n    return {'acme.fine': 'acme.serdes:Fine', 'acme.gone': "
        "'acme.serdes:Gone'}\n",
        serdes="from penstock.serde import BytesSerde as Fine\n",
    )
    out, err = console.process("plugins", environment=environment)
    assert re.search(r"^serde +acme.fine +acme +1.5$", out, re.MULTILINE)
    assert re.search(r"^serde +acme.gone +acme +1.5$", out, re.MULTILINE)
    assert err == ""
    _, err = console.process("plugins", "--kind", "serde", "--check", code=1, environment=environment)
    assert re.search(r"^broken: acme 1.5 \(serde acme.gone\): .*cannot be loaded.*AttributeError", err)
    assert "acme.fine" not in err


class One:
    @hookimpl
    def penstock_serdes(self) -> Components:
        return {"same": "one:Serde", "one": "one:Serde"}


class Two:
    @hookimpl
    def penstock_serdes(self) -> Components:
        return {"same": "two:Serde", "two": "two:Serde"}

    @hookimpl
    def penstock_logs(self) -> Components:
        raise ValueError("not today")


def test_a_name_of_two_packages_is_guessed_to_be_neither() -> None:
    registry = Registry([("one", "acme-one", "1", One()), ("two", "acme-two", "2", Two())], {})
    with pytest.raises(PluginError, match="serde 'same' comes from two packages, acme-one and acme-two"):
        registry.find("serde", "same")
    assert registry.find("serde", "one").package == "acme-one"
    assert registry.find("serde", "two").package == "acme-two"
    assert registry.broken == {
        "acme-two 2 (two: same)": "serde 'same' comes from two packages, acme-one and acme-two: uninstall one of them",
        "acme-two 2 (two: penstock_logs)": "ValueError: not today",
    }
