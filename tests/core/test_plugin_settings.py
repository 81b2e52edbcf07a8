"""Settings that plugins bring: given, checked and shown as our own are, and read with their types."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock import Application, ConfigError, PluginError, Processor, Record, Setting, Settings, Topology
from penstock.hooks import Component, registry
from penstock.plugins.testing import TopologyTestDriver
from penstock.settings.layers import Layer
from penstock.settings.sources import environment_layer, file_layer, options_layer
from penstock.settings.types import FLAG, optional, whole_number

LIMIT = Setting("acme.limit", optional(whole_number()), None, "The most records.")
LOUD = Setting("acme.loud", FLAG, False, "Whether it says so.")


@pytest.fixture(autouse=True)
def acme(monkeypatch: pytest.MonkeyPatch) -> None:
    """A package with two settings, one that cannot be loaded, and one that is none."""
    given = {"acme.limit": LIMIT, "acme.loud": LOUD, "acme.gone": "no_such_module:GONE", "acme.wrong": "a text"}
    for name, target in given.items():
        made = Component("setting", name, target, "acme", "penstock-acme", "1")
        if name == "acme.wrong":
            made = Component("setting", name, LIMIT, "acme", "penstock-acme", "1")
        monkeypatch.setitem(registry().components, ("setting", name), made)


class Limited(Processor):
    """Forwards as many records as the setting says."""

    def process(self, record: Record) -> None:
        limit: int | None = LIMIT.of(self.context.config)
        self.context.forward(record.with_value(str(limit)))


def topology() -> Topology:
    return Topology().add_source("in", "in").add_processor("limited", Limited, "in").add_sink("out", "out", "limited")


def in_a_file(directory: Path, text: str) -> Layer:
    (directory / "my.toml").write_text(text)
    return file_layer(directory / "my.toml")


WAYS: dict[str, Callable[[Path], Settings]] = {
    "Settings": lambda directory: Settings(**{"acme.limit": 3}),
    "a mapping": lambda directory: Application("a", topology(), {"acme.limit": 3}).settings,
    "a keyword": lambda directory: Application("a", topology(), acme_limit=3).settings,
    "with_settings": lambda directory: Application("a", topology()).with_settings(acme_limit=3).settings,
    "an option": lambda directory: Settings.of(options_layer(["acme.limit=3"])),
    "a variable": lambda directory: Settings.of(environment_layer({"PENSTOCK_ACME_LIMIT": "3"})),
    "a file": lambda directory: Settings.of(in_a_file(directory, "[acme]\nlimit = 3\n")),
    "text in a file": lambda directory: Settings.of(in_a_file(directory, 'acme.limit = "3"\n')),
}


@pytest.mark.parametrize("way", WAYS)
def test_it_is_given_in_every_way_in_which_ours_are(way: str, tmp_path: Path) -> None:
    settings = WAYS[way](tmp_path)
    assert (LIMIT.of(settings), LOUD.of(settings)) == (3, False)
    assert (settings["acme.limit"], settings["acme.loud"]) == (3, False)
    assert settings == Settings(**{"acme.limit": 3}) != Settings()
    assert "acme.limit=3" in repr(settings)


def test_a_processor_reads_it_from_its_context() -> None:
    for given, expected in (({"acme.limit": 7}, "7"), ({}, "None")):
        with TopologyTestDriver(Application("a", topology(), given)) as driver:
            driver.pipe("in", "k", "v")
            assert [record.value for record in driver.read_all("out")] == [expected]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (lambda: Settings(**{"acme.limit": 0}), "^setting 'acme.limit': expected a whole number above 0, found 0$"),
        (lambda: Settings(**{"acme.loud": "yes"}), "^setting 'acme.loud': expected True or False, found 'yes'$"),
        (lambda: Settings(**{"acme.limt": 1}), "^unknown setting 'acme.limt'; did you mean 'acme.limit'"),
        (
            lambda: Application("a", topology(), {"acme.limt": 1}),
            "^unknown setting 'acme.limt'; did you mean 'acme.lim",
        ),
        (
            lambda: Settings.of(options_layer(["acme.limit=many"])),
            "^--set acme.limit: setting 'acme.limit': expected a",
        ),
        (
            lambda: environment_layer({"PENSTOCK_ACME_LIMT": "1"}),
            "^PENSTOCK_ACME_LIMT: unknown setting 'acme_limt'; did",
        ),
    ],
)
def test_what_is_wrong_is_refused_by_name(given: Callable[[], Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        given()


def test_one_that_cannot_be_loaded_is_an_error_where_it_is_given_and_nowhere_else() -> None:
    assert {"acme.limit", "acme.loud"} <= set(Settings().by_name)
    assert not {"acme.gone", "acme.wrong"} & set(Settings().by_name)
    with pytest.raises(PluginError, match="setting 'acme.gone' of package penstock-acme 1 cannot be loaded"):
        Settings(**{"acme.gone": 1})
    with pytest.raises(PluginError, match="^setting 'acme.wrong': expected a penstock.Setting of this name, found "):
        Settings(**{"acme.wrong": 1})


def test_a_copy_needs_no_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that only carries the settings on does not look them up."""
    settings = Settings(**{"acme.limit": 3})
    assert settings.by_name["acme.limit"] == 3
    data = pickle.dumps(settings)
    monkeypatch.delitem(registry().components, ("setting", "acme.limit"))
    assert LIMIT.of(pickle.loads(data)) == 3
    assert "by_name" not in vars(pickle.loads(data))
