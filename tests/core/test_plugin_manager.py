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
from penstock.plugins.engine.task.shipping import Arrived, pack
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
        with pytest.raises(PluginError, match="plugin 'other' is registered already, as 'shop': unregister it first"):
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


def sent(*plugins: object) -> bytes:
    """Return a cargo with plugins, as another process makes it."""
    with own_plugins(*plugins):
        return pack("cargo")


def answer() -> Any:
    return registry().load("processor", "shop.upper")


def test_what_is_sent_again_takes_the_place_of_what_was_sent_before() -> None:
    """Workers of Spark run one program after another."""
    first, second = sent(Shop()), sent(Shop(**{"shop.upper": Shout, "shop.lower": Upper}))
    with own_plugins():
        assert Arrived(first).cargo == "cargo" and answer().__name__ == "Upper"
        assert Arrived(second).cargo == "cargo" and answer().__name__ == "Shout"
        assert Arrived(first).cargo == "cargo" and answer().__name__ == "Upper"
        assert registry().names("processor").count("shop.lower") == 0
    with own_plugins(Shop(**{"shop.upper": Shout})):
        Arrived(first)
        assert answer() is Shout, "this process has its own"


def test_what_was_sent_gives_way_to_the_module_that_brings_it() -> None:
    cargo = sent(Shop())
    with own_plugins() as manager:
        Arrived(cargo)
        own = Shop(**{"shop.upper": Shout})
        assert manager.register(own) == "shop" and answer() is Shout


def test_hooks_are_called_where_they_are_registered_only() -> None:
    called: list[int] = []

    class Counted:
        @hookimpl
        def penstock_processors(self) -> Components:
            called.append(1)
            return {"counted.upper": Upper}

    cargo = sent(Counted())
    with own_plugins():
        Arrived(cargo)
        assert registry().load("processor", "counted.upper").__name__ == "Upper"
    assert called == [1]


def test_one_that_gives_nothing_is_not_sent() -> None:
    class Empty:
        @hookimpl
        def penstock_processors(self) -> Components:
            return {}

    cargo = sent(Empty())
    with own_plugins() as manager:
        assert Arrived(cargo).cargo == "cargo" and not manager.has_plugin("empty")


@pytest.mark.parametrize("name", ["acme:x", "penstock-streams", "__main__", "shop upper"])
def test_a_wrong_name_is_refused(name: str) -> None:
    with pytest.raises(PluginError, match="give it a name of letters, digits and dashes"):
        plugin_manager().register(Shop(), name)


def test_it_is_unregistered_by_its_name_and_those_of_packages_stay() -> None:
    with own_plugins() as manager:
        manager.register(Shop(), "Shop")
        manager.unregister(name="Shop")
        assert not manager.has_plugin("shop") and "shop.upper" not in registry().names("processor")
        with pytest.raises(PluginError, match="comes from an installed package: uninstall that package"):
            manager.unregister(name="penstock-streams:contrib-dedupe")
        assert "contrib.dedupe" in registry().names("processor")


def test_one_that_pluggy_refuses_leaves_nothing() -> None:
    class Wrapping:
        @hookimpl(wrapper=True)
        def penstock_processors(self) -> Components:
            return {}

    for wrong in (Wrapping(), None):
        with pytest.raises(PluginError, match="plugin '(wrapping|nonetype)'"):
            plugin_manager().register(wrong)
    assert not registry().broken


def test_what_cannot_be_sent_is_refused_at_the_start() -> None:
    refused = pytest.raises(ConfigError, match="cannot be sent to its task hosts \\(plugin 'shop' > .*lock")
    with own_plugins(Shop(**{"shop.locked": Locked(threading.Lock())})), refused:
        TopologyTestDriver(Topology().add_source("in", "in"))


class Locked:
    """Makes processors, and has a lock that they share."""

    def __init__(self, lock: Any) -> None:
        self.lock = lock

    def __call__(self) -> Processor:
        return Upper()


class Shout(Upper):
    pass
