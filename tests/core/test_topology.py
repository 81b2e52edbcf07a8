"""What a Topology accepts, and that each mistake is refused with a message that names it and the fix."""

from __future__ import annotations

import functools
import pickle
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from penstock import (
    PluginError,
    Processor,
    ProcessorNode,
    Program,
    Record,
    SourceNode,
    StoreError,
    StrSerde,
    Topology,
    TopologyError,
    ValueTransformer,
    hookimpl,
    key_value_store,
)
from penstock.errors import ConfigError
from penstock.hooks import Registry
from penstock.store.kinds.key_value import KeyValueStoreSpec
from penstock.store.specs import StoreSpec


class Pass(Processor):
    """Forwards every record."""

    def __init__(self, suffix: str = "") -> None:
        self.suffix = suffix

    def process(self, record: Record) -> None:
        self.context.forward(record)


class Upper(ValueTransformer):
    def transform(self, key: Any, value: Any) -> Any:
        return value.upper()


class Unfinished(Processor):
    pass


class Costly(Processor):
    made = 0

    def __init__(self) -> None:
        type(self).made += 1

    def process(self, record: Record) -> None: ...


class Singleton(Processor):
    only: Singleton | None = None

    def __new__(cls) -> Singleton:
        cls.only = cls.only or super().__new__(cls)
        return cls.only

    def process(self, record: Record) -> None: ...


class OnlyOne(type(Processor)):  # type: ignore[misc]
    def __call__(cls, *args: Any) -> Any:
        if not hasattr(cls, "only"):
            cls.only = super().__call__(*args)
        return cls.only


class MetaSingleton(Processor, metaclass=OnlyOne):
    def process(self, record: Record) -> None: ...


SHARED = Pass()


def broken_factory() -> Processor:
    raise OSError("no route to host")


class AcmePlugin:
    @hookimpl
    def penstock_processors(self) -> dict[str, Any]:
        return {"acme.pass": Pass, "acme.gone": "acme_is_not_there:Gone"}

    @hookimpl
    def penstock_store_backends(self) -> dict[str, Any]:
        return {"acme.disk": SimpleNamespace}

    @hookimpl
    def penstock_store_kinds(self) -> dict[str, Any]:
        return {"key_value": SimpleNamespace}

    @hookimpl
    def penstock_serdes(self) -> dict[str, Any]:
        return {"str": StrSerde, "int": StrSerde}


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is installed here does not matter to these tests."""
    registry = Registry([("acme", "penstock-streams", "1.0", AcmePlugin())], {})
    monkeypatch.setattr("penstock.program.checks.registry", lambda: registry)


def base() -> Topology:
    return Topology().add_source("src", "in").add_processor("p", Pass, "src").add_sink("out", "out", "p")


def with_global() -> Topology:
    return base().add_global_store(key_value_store("gs"), "gs-source", "g", "gs-fill", Pass)


MISTAKES: dict[str, tuple[Callable[[], object], str]] = {
    "duplicate node": (lambda: base().add_source("p", "other"), "already a processor named 'p'"),
    "duplicate of a sink": (lambda: base().add_processor("out", Pass, "src"), "already a sink named 'out'"),
    "empty name": (lambda: base().add_source("", "other"), "expected a name, found ''"),
    "name that is no text": (lambda: base().add_sink(7, "x", "p"), "expected a name, found 7"),  # type: ignore[arg-type]
    "unknown parent": (
        lambda: base().add_processor("q", Pass, ["src", "srd"]),
        r"processor 'q': its parent 'srd' is not in the topology; parents are added before .* did you mean 'src'\?",
    ),
    "unknown parent, nothing near": (lambda: base().add_sink("q", "t", "zzz"), "there is: src, p, out"),
    "own parent": (lambda: base().add_processor("q", Pass, ["src", "q"]), "'q' is its own parent, .*no cycles; " ".*add_source"),
    "no parent": (lambda: base().add_sink("q", "t", []), "sink 'q' has no parent; name the nodes"),
    "parents that are none": (lambda: base().add_sink("q", "t", 3), "expected the name of its " "parent"),  # type: ignore[arg-type]
    "parent twice": (lambda: base().add_processor("q", Pass, ["p", "p"]), "'q' names a parent twice"),
    "sink as parent": (lambda: base().add_processor("q", Pass, "out"), "'out' is a sink, .* name the sink's own " "parents"),
    "source without topics": (lambda: base().add_source("s"), r"source 's': expected topics or a pattern, found neither"),
    "topics and pattern": (lambda: base().add_source("s", "a", pattern="b"), "found both"),
    "topic of two sources": (
        lambda: base().add_source("s", "other", "in"),
        "source 's': topic 'in' is already read by source 'src'; .*the parent of both readers",
    ),
    "topic twice": (lambda: base().add_source("s", "a", "a"), "names a topic twice: a, a"),
    "topic name": (lambda: base().add_source("s", "a b"), "a topic's name is 1 to 249 letters, .*found 'a b'"),
    "topic name of a sink": (lambda: base().add_sink("s", "..", "p"), r"sink 's': a topic's name .*found '\.\.'"),
    "topic that is no text": (lambda: base().add_sink("s", None, "p"), "a topic's name or a " "function"),  # type: ignore[arg-type]
    "invalid pattern": (lambda: base().add_source("s", pattern="a(b"), r"'a\(b' is not a regular expression: missing \)"),
    "pattern of bytes": (lambda: base().add_source("s", pattern=re.compile(b"a")), "is of bytes"),  # type: ignore[arg-type]
    "pattern and topic": (lambda: base().add_source("s", pattern="i.").build(), "'in' of source 'src' also matches .* " "source 's'"),
    "same pattern": (
        lambda: base().add_source("s", pattern="x.*").add_source("t", pattern="x.*").build(),
        "sources 's' and 't' have the same pattern 'x",
    ),
    "offset reset": (lambda: base().add_source("s", "x", offset_reset="first"), "expected 'earliest', 'latest', or how far back in time"),
    "extractor": (lambda: base().add_source("s", "x", timestamp_extractor="ts"), "timestamp_extractor is a " "function"),  # type: ignore[arg-type]
    "serde": (lambda: base().add_source("s", "x", key_serde=StrSerde), "key_serde is a Serde or the " "name"),  # type: ignore[arg-type]
    "partitioner": (lambda: base().add_sink("s", "x", "p", partitioner=0), "partitioner is a function, found " "0"),  # type: ignore[arg-type]
    "instance for class": (lambda: base().add_processor("q", SHARED, "p"), "found one instance of Pass; pass the " "class"),  # type: ignore[arg-type]
    "supplier that is none": (lambda: base().add_processor("q", 5, "p"), "expected a class, a factory or the " "name"),  # type: ignore[arg-type]
    "class that is no processor": (lambda: base().add_processor("q", dict, "p"), "dict is neither a Processor " "nor"),  # type: ignore[arg-type]
    "abstract class": (lambda: base().add_processor("q", Unfinished, "p"), "Unfinished is abstract; write its method " "process"),
    "factory of something else": (lambda: base().add_processor("q", lambda: 3, "p"), "made 3, which is " "neither"),  # type: ignore[arg-type,return-value]
    "factory of one instance": (lambda: base().add_processor("q", lambda: SHARED, "p"), "the same object twice"),
    "singleton": (lambda: base().add_processor("q", Singleton, "p"), "the same object twice"),
    "singleton by metaclass": (lambda: base().add_processor("q", MetaSingleton, "p"), "the same object twice"),
    "broken factory": (lambda: base().add_processor("q", broken_factory, "p"), "'q': its supplier raised OSError: no " "route"),
    "wrong options": (lambda: base().add_processor("q", Pass, "p", sufix="x"), r"options \['sufix'\]: got an unexpected"),
    "missing options": (lambda: base().add_processor("q", lambda size: Pass(size), "p"), "options none: missing a " "required"),
    "wrong options of a plugin": (lambda: base().add_processor("q", "acme.pass", "p", sufix="x"), "unexpected keyword"),
    "stores that are no list": (lambda: base().add_processor("q", Pass, "p", stores="s"), r"write stores=\['s'\]"),
    "store that is none": (lambda: base().add_processor("q", Pass, "p", stores=[3]), "expected a declared store, " "found 3"),  # type: ignore[list-item]
    "store name": (lambda: base().add_store(KeyValueStoreSpec("a/b"), "p"), "store 'a/b': a store's name is"),
    "store without a kind": (lambda: base().add_store(StoreSpec("s"), "p"), "store 's': class StoreSpec sets no " "`kind`"),
    "unknown store": (
        lambda: base().add_store(key_value_store("totals"), "p").add_processor("q", Pass, "p", stores=["total"]).build(),
        "processor 'q' is connected to store 'total', which is not in the topology; .* did you mean 'totals'",
    ),
    "store that nobody connects": (lambda: base().add_store(key_value_store("s")).build(), "store 's' is connected to no processor; "),
    "store of an unknown processor": (
        lambda: base().add_store(key_value_store("s"), "pp"),
        "'s' cannot be connected to 'pp': there is no such processor yet; did you mean 'p'",
    ),
    "store of a source": (lambda: base().add_store(key_value_store("s"), "src"), "'src', which is a source: only " "processors use stores"),
    "store of a sink": (lambda: base().connect("out", "s"), "'out', which is a sink"),
    "connect nothing": (lambda: base().connect("p"), "name at least one store"),
    "two stores of a name": (
        lambda: base().add_store(key_value_store("s"), "p").add_store(key_value_store("s", timestamped=True), "p"),
        "store 's' is already in the topology, declared differently",
    ),
    "global store connected": (lambda: with_global().connect("p", "gs"), r"'gs' is global and needs no connection; context.get_store"),
    "global store connected later": (
        lambda: base().connect("p", "gs").add_global_store(key_value_store("gs"), "a", "g", "b", Pass).build(),
        "processor 'p': store 'gs' is global and needs no connection",
    ),
    "store named as a global one": (lambda: with_global().add_store(key_value_store("gs"), "p"), "already a global store"),
    "global store named as a store": (
        lambda: base().add_store(key_value_store("s"), "p").add_global_store(key_value_store("s"), "a", "g", "b", Pass),
        "global store 's': there is already a store of that name",
    ),
    "child of a global source": (lambda: with_global().add_sink("q", "t", "gs-source"), "belongs to a global store " ".*get_store"),
    "child of a global processor": (lambda: with_global().add_sink("q", "t", "gs-fill"), "belongs to a global store"),
    "second store of a global processor": (lambda: with_global().connect("gs-fill", "s"), "can have no other store"),
    "second store of a read-only store's processor": (
        lambda: base().add_read_only_store(key_value_store("ro"), "a", "g", "b", Pass).connect("b", "s"),
        "fills a read-only store and can have no other store",
    ),
    "global names alike": (lambda: base().add_global_store(key_value_store("x"), "a", "g", "a", Pass), "need different names"),
    "global topic read elsewhere": (lambda: with_global().add_source("s", "g"), "'g' is already read by source " "'gs-source'"),
    "global store of an internal topic": (
        lambda: base().add_internal_topic("i").add_sink("s", "i", "p").add_global_store(key_value_store("x"), "a", "i", "b", Pass).build(),
        "global store 'x' reads the internal topic 'i'",
    ),
    "internal topic twice": (lambda: base().add_internal_topic("i").add_internal_topic("i"), "'i' is already in the topology"),
    "internal topic partitions": (lambda: base().add_internal_topic("i", 0), "number of partitions above 0, found 0"),
    "internal topic nobody writes": (
        lambda: base().add_internal_topic("oui").add_source("s", "oui").build(),
        "internal topic 'oui' is written by no sink; did you mean 'out'",
    ),
    "internal topic nobody reads": (
        lambda: base().add_internal_topic("i").add_sink("s", "i", "p").build(),
        "internal topic 'i' is read by no source",
    ),
    "repartition twice": (lambda: base().add_repartition("r", "p").add_repartition("r", "p"), "already a processor named 'r-filter'"),
    "copartition of an unknown source": (lambda: base().copartition("src", "sr"), "no source named 'sr' yet; did you " "mean 'src'"),
    "copartition of a processor": (lambda: base().copartition("src", "p"), "no source named 'p'"),
    "copartition of a global source": (lambda: with_global().copartition("src", "gs-source"), "belongs to a global store"),
    "copartition of one": (lambda: base().copartition("src"), "at least two sources"),
    "empty": (lambda: Topology().build(), "the topology is empty: add_source"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_refused_when_it_is_made(name: str) -> None:
    make, message = MISTAKES[name]
    with pytest.raises(TopologyError, match=message):
        make()


NOT_INSTALLED: dict[str, tuple[Callable[[], object], str]] = {
    "processor": (
        lambda: base().add_processor("q", "acme.pas", "p"),
        r"processor 'q': no processor named 'acme\.pas' .*Did you mean 'acme\.pass'",
    ),
    "processor that cannot be loaded": (lambda: base().add_processor("q", "acme.gone", "p"), "cannot be loaded"),
    "global processor": (
        lambda: base().add_global_store(key_value_store("s"), "a", "g", "b", "acme.fill"),
        "'b': no processor named 'acme.fill'",
    ),
    "store backend": (
        lambda: base().add_store(key_value_store("s", backend="acme.disc"), "p"),
        r"store 's': no store backend named 'acme\.disc' .*acme\.disk",
    ),
    "state serde": (
        lambda: base().add_store(key_value_store("s", value_serde="thrift"), "p"),
        "'s', value_serde: no serde named 'thrift'",
    ),
    "source serde": (lambda: base().add_source("s", "x", key_serde="thrift"), "source 's', key_serde: no serde"),
    "sink serde": (lambda: base().add_sink("s", "x", "p", value_serde="thrift"), "sink 's', value_serde: no serde"),
    "repartition serde": (lambda: base().add_repartition("r", "p", key_serde="thrift"), "'r', key_serde: no serde"),
}


@pytest.mark.parametrize("name", NOT_INSTALLED)
def test_a_plugin_that_is_not_installed_is_refused_when_it_is_named(name: str) -> None:
    make, message = NOT_INSTALLED[name]
    with pytest.raises(PluginError, match=message):
        make()


REFUSED_CALLS: dict[str, Callable[[Topology], object]] = {
    "processor": lambda t: t.add_processor("p", Pass, "src", stores=[key_value_store("new")]),
    "processor with a second bad store": lambda t: t.add_processor("q", Pass, "p", stores=[key_value_store("new"), "gs"]),
    "repartition": lambda t: t.add_repartition("r", "p", partitions=-1),
    "repartition whose topic is taken": lambda t: t.add_repartition("taken", "p"),
    "store": lambda t: t.add_store(key_value_store("new"), "nobody"),
    "global store": lambda t: t.add_global_store(key_value_store("new"), "a", "x", "src", Pass),
    "global store with a bad processor": lambda t: t.add_global_store(key_value_store("new"), "a", "x", "b", Unfinished),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED_CALLS)
def test_a_refused_call_leaves_nothing_behind(name: str) -> None:
    topology = with_global().add_source("other", "taken-repartition")
    before = topology.build()
    with pytest.raises(TopologyError):
        REFUSED_CALLS[name](topology)
    assert topology.build() == before


def test_a_class_is_looked_at_and_not_tried() -> None:
    base().add_processor("q", Costly, "p").add_processor("r", functools.partial(Costly), "p")
    assert Costly.made == 0


def test_suppliers() -> None:
    topology = base()
    topology.add_processor("class", Pass, "p", suffix="!")
    topology.add_processor("factory", lambda suffix: Pass(suffix), "p", suffix="!")
    topology.add_processor("partial", functools.partial(Pass, suffix="!"), "p")
    topology.add_processor("transformer", Upper, "p")
    topology.add_processor("plugin", "acme.pass", "p", suffix="!")
    nodes = topology.build().nodes
    plugin = nodes["plugin"]
    assert isinstance(plugin, ProcessorNode)
    assert plugin.supplier == "acme.pass", "shipped by name, loaded where it runs"
    assert plugin.options == {"suffix": "!"}


def test_stores_are_connected_in_three_ways() -> None:
    topology = Topology().add_source("src", "in")
    topology.add_processor("p", Pass, "src", stores=[key_value_store("a"), "b", "a"])
    topology.add_store(key_value_store("b")).add_store(key_value_store("c"), "p")
    topology.connect("p", "b", "c")
    program = topology.build()
    node = program.nodes["p"]
    assert isinstance(node, ProcessorNode)
    assert node.stores == ("a", "b", "c")
    assert [store.name for store in program.subtopologies[0].stores] == ["a", "b", "c"]


def test_an_equal_declaration_is_the_same_store() -> None:
    topology = Topology().add_source("src", "in").add_processor("p", Pass, "src", stores=[key_value_store("s")])
    topology.add_processor("q", Pass, "src", stores=[key_value_store("s")])
    assert list(topology.build().stores) == ["s"]


def test_repartition() -> None:
    topology = base().add_repartition("by-user", "p", partitions=3, key_serde="int")
    program = topology.add_sink("out2", "out2", "by-user").build()
    assert [[node.name for node in each.nodes] for each in program.subtopologies] == [
        ["src", "p", "out", "by-user-filter", "by-user-sink"],
        ["by-user", "out2"],
    ]
    assert program.internal_topics["by-user-repartition"].partitions == 3
    source = program.nodes["by-user"]
    assert isinstance(source, SourceNode)
    assert (source.topics, source.key_serde) == (("by-user-repartition",), "int")
    assert program.topics() == ("in",)
    assert program.sink_topics() == ("out", "out2")


def test_a_repartition_drops_records_without_a_key() -> None:
    node = base().add_repartition("r", "p").build().nodes["r-filter"]
    assert isinstance(node, ProcessorNode)
    assert isinstance(node.supplier, type)
    forwarded: list[Record] = []
    processor: Any = node.supplier()
    processor.init(SimpleNamespace(send=forwarded.append))
    for key in ("a", None, ""):
        processor.process(Record(key, "v", 0))
    assert [record.key for record in forwarded] == ["a", ""]


def test_a_built_program_is_not_touched_by_later_calls() -> None:
    topology = base()
    program = topology.build()
    topology.add_source("later", "later").add_internal_topic("x")
    assert "later" not in program.nodes
    assert len(program.subtopologies) == 1
    assert not program.internal_topics


def everything(supplier: Any) -> Program:
    topology = with_global().add_source("pat", pattern=r"x\d")
    topology.add_processor("q", supplier, ["p", "pat"], stores=[key_value_store("s", ttl="1h")])
    return topology.add_repartition("r", "q").add_sink("o", "o", "r").build()


@pytest.mark.parametrize(
    ("edges", "expected"),
    [
        ([("in", "mid"), ("mid", "out")], {"mid"}),
        ([("in", "a"), ("a", "b"), ("b", "out")], {"a", "b"}),
        ([("in", "retries"), ("retries", "retries")], {"retries"}),
        ([("in", "in"), ("in", "out")], set()),
        ([("in", "mid"), ("mid", "in")], set()),
        ([("in", "a"), ("a", "b"), ("b", "a")], {"a"}),
        ([("in", "out")], set()),
    ],
)
def test_intermediate_topics(edges: list[tuple[str, str]], expected: set[str]) -> None:
    """Results of other topics reach them; the first records of a topic in a circle come from somebody else."""
    topology = Topology()
    for number, topic in enumerate(dict.fromkeys(source for source, _ in edges)):
        topology.add_source(f"source-{number}", topic)
        for target in (target for source, target in edges if source == topic):
            topology.add_sink(f"sink-{number}-{target}", target, f"source-{number}")
    program, read = topology.build(), {"in", "mid", "a", "b", "retries"}
    assert program.intermediate_topics(read) == expected
    circular = program.circular_topics(read)
    assert circular == {topic for _, topic in edges} & {topic for topic, _ in edges} - expected
    for topic in circular:
        assert program.intermediate_topics(read, [topic]) == expected | {topic}
        assert program.circular_topics(read, [topic]) == circular - {topic}


@pytest.mark.parametrize("sinks", [["chosen"], ["chosen", "out"], []])
def test_a_named_topic_is_intermediate_where_no_sink_names_it(sinks: list[str]) -> None:
    """A function chooses the topic of each record, or a handler sends it there."""
    topology = (
        Topology().add_source("in", "in").add_source("again", "retries").add_processor("p", Pass, ["in", "again"])
    )
    for each in sinks:
        topology.add_sink(each, (lambda record, context: "retries") if each == "chosen" else each, "p")
    program, read = topology.build(), {"in", "retries"}
    assert program.intermediate_topics(read) == set()
    assert program.intermediate_topics(read, ["retries"]) == {"retries"}
    assert program.intermediate_topics(read, ["others"]) == set()


def test_a_program_pickles() -> None:
    program = everything(Pass)
    assert pickle.loads(pickle.dumps(program)) == program


def test_key_value_store() -> None:
    spec = key_value_store("s", ttl="90s", backend="acme.disk", logged=False)
    assert (spec.name, spec.ttl_ms, spec.backend, spec.logged) == ("s", 90_000, "acme.disk", False)
    assert key_value_store("s").ttl_ms is None
    with pytest.raises(ConfigError, match="ttl of store 's': expected a timedelta or text"):
        key_value_store("s", ttl=5)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="at least 1ms"):
        key_value_store("s", ttl="0s")


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "ä", "n" * 250, "a\n", None, 7])
def test_what_is_no_stores_name(name: Any) -> None:
    """Neither in our declaration nor in somebody else's, of any store."""
    with pytest.raises(StoreError, match="a store's name is 1 to 249 letters"):
        key_value_store(name)
    declared = KeyValueStoreSpec(name)
    with pytest.raises(TopologyError, match="a store's name is 1 to 249 letters"):
        base().add_store(declared, "p")
    with pytest.raises(TopologyError, match="a store's name is 1 to 249 letters"):
        base().add_global_store(declared, "global", "table", "fill", Pass)


def test_what_is_a_stores_name() -> None:
    """Names that differ in case only are different stores."""
    topology = base()
    for name in ("counts", "Counts", "...", ".a", "-", "_", "9", "n" * 249):
        topology.add_store(key_value_store(name), "p")
    assert {"counts", "Counts"} < set(topology.build().stores)


def test_everything_that_is_exported_is_there() -> None:
    import penstock

    names = penstock.__all__
    assert len(set(names)) == len(names)
    assert all(hasattr(penstock, name) for name in names)
