"""The plugin manager: plugins that no package has, in the processes of an application; managers of a test's own."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import pluggy
import pytest

from penstock import ConfigError, PluginError, Processor, Record, Topology, hookimpl, plugin_manager
from penstock.hooks import Components, registry
from penstock.testing import TopologyTestDriver, own_plugins


class Upper(Processor):
    def process(self, record: Record) -> None:
        self.context.forward(record.with_value(record.value.upper()))


class Shop:
    """A plugin of a script: an object that keeps what it needs."""

    def __init__(self, **more: Any) -> None:
        self.more = more

    @hookimpl
    def penstock_processors(self) -> Components:
        return {"shop.upper": Upper, **self.more}


def program() -> Topology:
    topology = Topology().add_source("in", "in", key_serde="str", value_serde="str")
    topology.add_processor("upper", "shop.upper", "in")
    return topology.add_sink("out", "out", "upper", key_serde="str", value_serde="str")


def test_an_object_is_a_plugin_until_it_is_unregistered() -> None:
    shop, manager = Shop(), plugin_manager()
    assert isinstance(manager, pluggy.PluginManager)
    assert manager.register(shop) == "shop" and manager.get_plugin("shop") is shop
    try:
        with TopologyTestDriver(program()) as driver:
            driver.input_topic("in").pipe("k", "tea")
            assert driver.output_topic("out").read_values() == ["TEA"]
        assert (
            registry().find("processor", "shop.upper").title == "processor 'shop.upper' of plugin shop of this process"
        )
        with pytest.raises(PluginError, match="plugin 'shop' is registered already: unregister it first"):
            manager.register(Shop())
        with pytest.raises(PluginError, match="plugin 'other' is registered already"):
            manager.register(shop, "other")
    finally:
        manager.unregister(shop)
    with pytest.raises(PluginError, match="no processor named 'shop.upper' is installed"):
        registry().find("processor", "shop.upper")


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"memory": Upper}, "a name of another package begins with the package's name and a dot: call it shop.memory"),
        ({"shop.none": None}, "returned None for 'shop.none'"),
    ],
)
def test_a_wrong_one_is_refused_whole(more: dict[str, Any], why: str) -> None:
    with pytest.raises(PluginError, match=f"plugin 'shop': .*{why}"):
        plugin_manager().register(Shop(**more))
    assert not plugin_manager().has_plugin("shop") and not registry().broken
    for name in ("shop.upper", *more):
        with pytest.raises(PluginError, match=f"no processor named {name!r} is installed"):
            registry().find("processor", name)


def test_a_hook_that_takes_something_or_does_not_exist_is_refused() -> None:
    module = ModuleType("shop")
    module.penstock_serde = hookimpl(lambda: {})  # type: ignore[attr-defined]
    module.penstock_logs = hookimpl(lambda location: {})  # type: ignore[attr-defined]
    with pytest.raises(PluginError, match="there is no hook penstock_serde; did you mean") as raised:
        plugin_manager().register(module)
    assert "penstock_logs takes no arguments, this one does: missing a required argument: 'location'" in str(
        raised.value
    )


def test_a_test_has_a_manager_of_its_own() -> None:
    with own_plugins(Shop()) as manager:
        assert plugin_manager() is manager
        assert {each.package for each in registry().components.values()} == {"penstock-streams", "shop"}
        with own_plugins():
            assert "shop.upper" not in registry().names("processor")
        assert "shop.upper" in registry().names("processor")
    assert plugin_manager() is not manager and "shop.upper" not in registry().names("processor")


def test_its_steps_are_traced(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "penstock.hooks"), own_plugins(Shop()):
        pass
    assert "registered shop" in caplog.text
    assert "shop: penstock_processors gives ['shop.upper']" in caplog.text


SCRIPT = """
import sys

from penstock import Application, Processor, Topology, hookimpl, plugin_manager, run


class Upper(Processor):
    def process(self, record):
        self.context.forward(record.with_value(record.value.upper()))


class Shop:
    @hookimpl
    def penstock_processors(self):
        return {"shop.upper": Upper}


if __name__ == "__main__":
    plugin_manager().register(Shop())
    topology = Topology().add_source("in", "in", key_serde="str", value_serde="str")
    topology.add_processor("upper", "shop.upper", "in")
    topology.add_sink("out", "out", "upper", key_serde="str", value_serde="str")
    application = Application("shop", topology, log=sys.argv[1], engine="embedded", processes=1)
    summary = run(application)
    print(summary.records_in, summary.records_out)
"""


def test_it_reaches_task_hosts(tmp_path: Path) -> None:
    script, log = tmp_path / "shop.py", f"local:{tmp_path / 'log'}"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "penstock.plugins.operate.cli"]
    for topic in ("in", "out"):
        subprocess.run([*command, "topics", "create", topic, "--log", log], cwd=tmp_path, check=True)
    sent = subprocess.run(
        [*command, "produce", "in", "--log", log], cwd=tmp_path, input="tea\ncake\n", text=True, check=True
    )
    assert sent.returncode == 0
    found = subprocess.run([sys.executable, "shop.py", log], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert found.stdout.split() == ["2", "2"], found.stderr


def test_what_cannot_be_sent_is_refused_at_the_start() -> None:
    with (
        own_plugins(Locked()),
        pytest.raises(ConfigError, match="cannot be sent to its task hosts \\(plugin 'locked' > penstock_processors"),
    ):
        TopologyTestDriver(Topology().add_source("in", "in"))


class Locked:
    def __init__(self) -> None:
        self.lock = threading.Lock()

    @hookimpl
    def penstock_processors(self) -> Components:
        return {"locked.upper": Upper}
