"""Names that nothing answers to, and settings that make no sense: refused before anything runs."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from penstock import (
    Application,
    ConfigError,
    IncompatibleStateError,
    LogError,
    PluginError,
    Processor,
    ProductionError,
    Record,
    Topology,
    TopologyError,
    key_value_store,
)

from .world import ORDERS, Contents, MakeWorld, Total, World, says, totals

# ---------------------------------------------------------------- plugins

INSTALL = "Install the package that brings it (`penstock plugins` lists them)"

PLUGINS: list[tuple[str, Any, list[str]]] = [
    ("processor", lambda: totals("acme.dedupe"), ["processor 'total': no processor named 'acme.dedupe' is installed; " "installed: ", INSTALL]),
    (
        "store backend of a store",
        lambda: Topology().add_store(key_value_store("totals", backend="lmbd")),
        ["store 'totals': no store backend named 'lmbd' is installed; installed: contrib.rocksdb, contrib.sqlite, lmdb, " "memory", "Did you mean 'lmdb'?", INSTALL],
    ),
    (
        "serde of a store",
        lambda: Topology().add_store(key_value_store("totals", value_serde="msgpak")),
        ["store 'totals', value_serde: no serde named 'msgpak' is installed; installed: ", "Did you mean 'msgpack'?", INSTALL],
    ),
    ("serde of a source", lambda: totals(key_serde="strr"), ["source 'orders', key_serde: no serde named 'strr' is " "installed; ", "Did you mean 'str'"]),
    (
        "serde of a sink",
        lambda: totals().add_sink("more", "more", "total", value_serde="jsn"),
        ["sink 'more', value_serde: no serde named 'jsn' is installed", "Did you mean 'json'?"],
    ),
    *(
        (f"setting {name}", lambda name=name, value=value: Application("shop", totals(), **{name: value}), [f"setting '{name}': no {kind} named '{wrong}' is installed", f"Did you mean '{near}'", INSTALL])
        for name, value, kind, wrong, near in [
            ("log", "locl:log", "log", "locl", "local"),
            ("changelog", "directry:changelog", "changelog", "directry", "directory"),
            ("store_backend", "lmbd", "store backend", "lmbd", "lmdb"),
            ("key_serde", "strr", "serde", "strr", "str"),
            ("value_serde", "jsn", "serde", "jsn", "json"),
            ("state_serde", "msgpak", "serde", "msgpak", "msgpack"),
        ]
    ),
]  # fmt: skip


@pytest.mark.parametrize(("make", "parts"), [case[1:] for case in PLUGINS], ids=[case[0] for case in PLUGINS])
def test_a_plugin_that_is_not_installed_is_refused_where_it_is_named(make: Any, parts: list[str]) -> None:
    with pytest.raises(PluginError) as caught:
        make()
    says(caught.value, *parts)


def test_a_plugin_that_went_away_loses_nothing(
    world: World, undisturbed: Contents, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program was checked where it was made; a worker elsewhere has other packages."""
    from penstock.hooks import registry

    found = registry().components.pop(("store backend", "lmdb"))
    try:
        with pytest.raises(PluginError) as caught:
            world.run()
    finally:
        registry().components["store backend", "lmdb"] = found
    says(
        caught.value,
        "no store backend named 'lmdb' is installed; installed: contrib.rocksdb, contrib.sqlite, memory",
        INSTALL,
    )
    world.run()
    assert world.contents() == undisturbed


# ---------------------------------------------------------------- settings

SETTINGS: list[tuple[dict[str, Any], list[str]]] = [
    ({"comit_interval": "5s"}, ["unknown setting 'comit_interval'; did you mean 'commit_interval'"]),
    ({"colour": "blue"}, ["unknown setting 'colour'; known: ", "commit_interval"]),
    ({"commit_interval": 5}, ["setting 'commit_interval': expected a timedelta or text like ", '"10s"', "found 5 (a bare number does not say its unit: write \"5s\" or \"5ms\")"]),
    ({"commit_interval": "5"}, ["setting 'commit_interval': expected ", "found '5' (a bare number does not say its unit: write \"5s\""]),
    ({"commit_interval": "5 minutes"}, ["setting 'commit_interval': expected ", "found '5 minutes'"]),
    ({"max_task_idle": "-1s"}, ["setting 'max_task_idle': ", "'-1s'"]),
    ({"commit_interval": timedelta(seconds=-1)}, ["setting 'commit_interval': ", "expected a length of time of 0 or " "more"]),
    ({"commit_bytes": "64MB"}, ["setting 'commit_bytes': expected a whole number above 0, found '64MB'"]),
    ({"parallelism": 0}, ["setting 'parallelism': expected a whole number above 0, found 0"]),
    ({"fetch_bytes": True}, ["setting 'fetch_bytes': expected a whole number above 0, found True"]),
    ({"offset_reset": "newest"}, ["setting 'offset_reset': expected 'earliest', 'latest', or how far back in time, such as '1d', found 'newest'"]),
    ({"log": "local"}, ["setting 'log': expected NAME:LOCATION, found 'local'"]),
    ({"log": None}, ["setting 'log': expected NAME:LOCATION, found None"]),
    ({"changelog": 7}, ["setting 'changelog': expected NAME:LOCATION, found 7"]),
    ({"state_dir": 7}, ["setting 'state_dir': expected a directory's path, found 7"]),
    ({"data_dir": None}, ["setting 'data_dir': expected a directory's path, found None"]),
    ({"user": [1]}, ["setting 'user': expected a mapping", "found a list"]),
    ({"value_serde": 3}, ["setting 'value_serde': expected the name of an installed serde", "found 3"]),
    ({"store_backend": None}, ["setting 'store_backend': expected the name of an installed store backend, found None"]),
    ({"processing_handler": "skip"}, ["setting 'processing_handler': expected a function, found 'skip'"]),
    ({"timestamp_extractor": 0}, ["setting 'timestamp_extractor': expected a function, found 0"]),
]  # fmt: skip


@pytest.mark.parametrize(("settings", "parts"), SETTINGS, ids=[str(case[0]) for case in SETTINGS])
def test_a_setting_that_makes_no_sense_is_named(settings: dict[str, Any], parts: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        Application("shop", totals(), **settings)
    says(caught.value, *parts)


@pytest.mark.parametrize("name", ["", "my shop", "a/b", "ä", 5, None])
def test_an_application_id_that_is_none(name: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        Application(name, totals())
    says(caught.value, f"application id {name!r}: expected 1 to 200 letters, digits, '.', '_' or '-'")


def test_an_application_id_that_is_where_another_one_has_its_notes() -> None:
    """A reset of it would delete the note that says under which id the other one is stored since it was resharded."""
    with pytest.raises(ConfigError) as caught:
        Application("shop-layouts", totals())
    says(caught.value, "application id 'shop-layouts' ends with '-layouts'", "how application 'shop' was resharded")


def test_a_topology_that_is_none() -> None:
    with pytest.raises(ConfigError) as caught:
        Application("shop", totals().build())  # type: ignore[arg-type]
    says(caught.value, "application 'shop': expected a Topology or a StreamsBuilder, found Program")


# ---------------------------------------------------------------- topics


def test_a_source_topic_that_is_missing(make_world: MakeWorld, undisturbed: Contents) -> None:
    world = make_world()
    world.produce("orders", *ORDERS)
    world.change(totals().add_source("refunds", "refunds"))
    with pytest.raises(TopologyError) as caught:
        world.run()
    says(
        caught.value,
        "the log has no topic 'refunds' (source 'refunds'); create it (`penstock topics create`) or correct the name",
    )
    world.change(totals())
    world.run()
    assert world.contents() == undisturbed


def test_a_sink_topic_that_is_missing(world: World, undisturbed: Contents) -> None:
    world.change(totals().add_sink("archive", "archive", "total"))
    with pytest.raises(TopologyError) as caught:
        world.run()
    says(
        caught.value,
        "the log has no topic 'archive' (sink 'archive'); create it (`penstock topics create`) or correct the name",
    )
    world.change(totals())
    world.run()
    assert world.contents() == undisturbed


def test_a_topic_that_a_record_chooses_and_nobody_made(world: World, undisturbed: Contents) -> None:
    def choose(record: Record, metadata: Any) -> str:
        return "totals-by-custmer"

    topology = (
        Topology()
        .add_source("orders", "orders")
        .add_processor("total", Total, "orders", stores=[key_value_store("totals")])
    )
    world.change(topology.add_sink("totals-out", choose, "total"))
    with pytest.raises(ProductionError) as caught:
        world.run()
    says(
        caught.value, "topic 'totals-by-custmer' does not exist in ", str(world.log), "did you mean " "'totals-by-customer'?",
        "`penstock topics create totals-by-custmer`",
    )  # fmt: skip
    world.change(totals())
    world.run()
    assert world.contents() == undisturbed


def test_a_topic_that_is_gone_while_the_application_runs(world: World, undisturbed: Contents) -> None:
    with world.workers() as (log, workers):
        ends = log.end_offsets(workers[0].partitions)
        workers[0].run_batch({}, 0)
        log.delete_topic("totals-by-customer")
        with pytest.raises(ProductionError) as caught:
            workers[0].run_batch(ends, 0)
        says(
            caught.value, "topic 'totals-by-customer' does not exist in ", "`penstock topics create totals-by-customer`"
        )
        log.create_topic("totals-by-customer", 2)
        workers[0].run_batch(ends, 0)
    world.run()
    assert world.contents() == undisturbed


def test_a_topic_that_the_log_does_not_take(make_world: MakeWorld) -> None:
    world = make_world()
    for name, config, parts in [
        ("my orders", {}, ["topic name 'my orders': expected 1 to 249 ASCII letters"]),
        ("more", {"retention": "1"}, ["topic 'more': unknown setting 'retention'; did you mean "]),
        ("more", {"retention.ms": "1h"}, ["topic 'more': setting 'retention.ms' is '1h', expected a whole number"]),
        ("orders", {}, ["topic 'orders' exists: use it, choose another name, or delete it first"]),
    ]:
        with pytest.raises(LogError) as caught:
            world.create(name, config=config)
        says(caught.value, *parts)


# ---------------------------------------------------------------- programs that no longer fit


class Keep(Processor):
    def process(self, record: Record) -> None:
        self.context.get_store("kept").put(record.key, record.value)


def with_source_before() -> Topology:
    topology = (
        Topology()
        .add_source("refunds", "totals-by-customer")
        .add_processor("keep", Keep, "refunds", stores=[key_value_store("kept")])
    )
    topology.add_source("orders", "orders").add_processor("total", Total, "orders", stores=[key_value_store("totals")])
    return topology


def with_other_serde() -> Topology:
    topology = Topology().add_source("orders", "orders")
    topology.add_processor("total", Total, "orders", stores=[key_value_store("totals", value_serde="int")])
    return topology.add_sink("totals-out", "totals-by-customer", "total")


CHANGED: list[tuple[Any, list[str]]] = [
    (
        with_other_serde,
        [
            "store 'totals' was written with value_serde penstock.plugins.serdes.msgpack.MsgpackSerde and now has "
            "penstock.serde.IntSerde: its content cannot be read",
        ],
    ),
    (with_source_before, ["store 'totals' was in sub-topology 0 and is now in 1", "add new ones behind the old"]),
]


@pytest.mark.parametrize(("program", "parts"), CHANGED, ids=[case[0].__name__ for case in CHANGED])
def test_a_program_that_does_not_fit_what_it_saved(
    world: World, undisturbed: Contents, program: Any, parts: list[str]
) -> None:
    world.run()
    world.change(program())
    with pytest.raises(IncompatibleStateError) as caught:
        world.run()
    says(
        caught.value,
        "application 'shop' does not fit what it saved: ",
        *parts,
        "Undo the change, or run it under another application id",
    )
    world.change(totals())
    assert world.contents() == undisturbed


def test_topics_that_have_other_numbers_of_partitions_now(world: World, undisturbed: Contents) -> None:
    world.run()
    with world.open() as log:
        log.delete_topic("orders")
        log.create_topic("orders", 3)
    with pytest.raises(IncompatibleStateError) as caught:
        world.run()
    says(
        caught.value, "application 'shop' does not fit what it saved: sub-topology 0 had 2 tasks and now has 3",
        "'orders' had 2 partitions and has 3", "the content of 'totals' is divided by the old number",
    )  # fmt: skip
    with world.open() as log:
        log.delete_topic("orders")
        log.create_topic("orders", 2)
    with pytest.raises(IncompatibleStateError) as caught:
        world.run()
    says(
        caught.value,
        "application 'shop', task 0_0: it has read orders-0, and its commit has no position there",
        "deleted and made again",
        "`penstock reset` starts it afresh",
    )


def test_topics_that_are_not_copartitioned(make_world: MakeWorld) -> None:
    topology = Topology().add_source("orders", "orders").add_source("refunds", "refunds")
    topology.add_processor("total", Total, ["orders", "refunds"], stores=[key_value_store("totals")])
    world = make_world(topology)
    world.produce("orders", *ORDERS)
    world.produce("refunds", ("ann", "-3"))
    world.run()
    before = world.contents().stores
    with world.open() as log:
        log.delete_topic("refunds")
        log.create_topic("refunds", 1)
    with pytest.raises(TopologyError) as caught:
        world.run()
    says(
        caught.value, "topics must have equal numbers of partitions because their records meet in store 'totals', but ",
        "'orders' has 2", "'refunds' has 1",
    )  # fmt: skip
    assert before == {("0_0", "totals"): [("ann", 13), ("bob", 7)], ("0_1", "totals"): [("dan", 1)]}


def test_a_topic_that_a_pattern_matches_later_is_read_from_its_start(make_world: MakeWorld) -> None:
    topology = (
        Topology()
        .add_source("orders", pattern="orders-.*")
        .add_processor("total", Total, "orders", stores=[key_value_store("totals")])
    )
    world = make_world(topology.add_sink("totals-out", "totals-by-customer", "total"))
    world.create("orders-shop")
    world.produce("orders-shop", *ORDERS[:3])
    world.run()
    world.create("orders-web")
    world.produce("orders-web", *ORDERS[3:])
    world.run()
    assert world.contents().stores == {("0_0", "totals"): [("ann", 16), ("bob", 7)], ("0_1", "totals"): [("dan", 1)]}
