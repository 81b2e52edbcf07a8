"""The kinds of change: two versions of an application each, and what comes of going from one to the other and back."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from penstock import DeadLetter, IntSerde, list_store, lru_map, session_store, skip, versioned_store, window_store
from penstock.program.extractors import wall_clock_timestamp
from penstock.store import StoreBuilder

from .versions import Flow, Table, Version, store
from .world import Command


@dataclass(frozen=True)
class GoesOn:
    """The version continues from what is there; `empty` are stores that start empty. `text` is for the table."""

    text: str = "continues"
    empty: tuple[str, ...] = ()


@dataclass(frozen=True)
class Refused:
    """The start is refused with a message that matches `message`; nothing is changed, and the version before still
    runs."""

    text: str
    message: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", f"refused: {self.text}")


Outcome = GoesOn | Refused
EVERY = ("directory", "topic")


@dataclass(frozen=True)
class Change:
    """One kind of change, from `before` to `after` and back, and what comes of it.

    `lost_there` and `lost_back` say what is different where the host's copy of the state is lost before the start.
    `quiet`: nothing is processed between the change and the way back. `waiting`: the version before has left records in
    a repartition topic. `first` is a command that is given before the change, and `first_back` one before the way back.
    """

    name: str
    before: Version
    after: Version
    there: Outcome = GoesOn()
    back: Outcome = GoesOn()
    lost_there: Outcome | None = None
    lost_back: Outcome | None = None
    changelogs: tuple[str, ...] = EVERY
    quiet: bool = False
    waiting: bool = False
    first: Command | None = None
    first_back: Command | None = None


def flows(*each: Flow, **options: Any) -> Version:
    return Version(flows=each, **options)


def stores(*each: Any, **settings: Any) -> Version:
    """The base with other stores, and settings."""
    return flows(Flow(stores=each), settings=settings)


def with_flow(**options: Any) -> Version:
    """The base with its flow changed."""
    return flows(replace(Flow(), **options))


def setting(**settings: Any) -> Version:
    """The base with settings."""
    return Version(settings=settings)


def window(**options: Any) -> StoreBuilder:
    return window_store("counts", **{"retention": "1d", "window_size": "1s", **options})


def session(**options: Any) -> StoreBuilder:
    return session_store("counts", **{"retention": "1d", **options})


def versioned(history: str = "1d", **options: Any) -> StoreBuilder:
    return versioned_store("counts", history_retention=history, **options)


def lru(max_entries: int = 1_000) -> StoreBuilder:
    return lru_map("counts", max_entries=max_entries)


BASE = Version()
TIMESTAMPED = stores(store(timestamped=True))
UNLOGGED = stores(store(logged=False))
TTL = stores(store(ttl="7d"))
NAMED_SERDES = store(key_serde="str", value_serde="int")
STATELESS = with_flow(stores=())
RETURNS = Flow(name="returns", topics=("returns",), stores=(store("returned"),))
STATELESS_RETURNS = replace(RETURNS, stores=())
BY_KEY = with_flow(repartition={})
TABLE = Table(store("table", value_serde="str"))

OTHER_SERDE = Refused("old entries could not be found or read", "store 'counts' was written with")
OTHER_KIND = Refused("its entries could not be read", "store 'counts'")
NOT_MISSED = GoesOn("comes back as it was")
MISSED = Refused("it has missed updates; choose to have it stale or empty", "store 'counts'.*missed.*penstock stores")
PARKED = GoesOn("continues; the removed store is parked")
NUMBERED = "sub-topologies are numbered in the order of their first nodes"
EMPTY = GoesOn("starts empty", empty=("counts",))

CHANGES: dict[str, list[Change]] = {
    "Serdes of stores": [
        Change("the key serde", BASE, stores(store(key_serde="str")), OTHER_SERDE),
        Change("the value serde", BASE, stores(store(value_serde="int")), OTHER_SERDE),
        Change("the default, `state_serde`", BASE, setting(state_serde="json"), OTHER_SERDE),
        Change(
            "the value serde, after `penstock stores drop`",
            BASE,
            stores(store(value_serde="int")),
            EMPTY,
            EMPTY,
            first="stores drop",
            first_back="stores drop",
        ),
        Change(
            "`state_serde`, and the store names its own", stores(NAMED_SERDES), stores(NAMED_SERDES, state_serde="json")
        ),
        Change("the default is named", BASE, stores(store(key_serde="msgpack", value_serde="msgpack"))),
        Change(
            "an object in place of its name",
            stores(NAMED_SERDES),
            stores(store(key_serde="str", value_serde=IntSerde())),
        ),
    ],
    "Options of stores": [
        Change("`backend`", BASE, stores(store(backend="memory"))),
        Change("the default, `store_backend`", BASE, setting(store_backend="memory")),
        Change("`ttl` given", BASE, TTL),
        Change("`ttl` taken away", TTL, BASE),
        Change("another `ttl`", TTL, stores(store(ttl="1d"))),
        Change("`timestamped`", BASE, TIMESTAMPED),
        Change("no longer `timestamped`", TIMESTAMPED, BASE),
        Change("no longer `logged`", BASE, UNLOGGED, lost_there=EMPTY, lost_back=EMPTY),
        Change("`logged`", UNLOGGED, BASE, lost_there=EMPTY, lost_back=EMPTY),
    ],
    "Stores": [
        Change("one more", BASE, stores(store(), store("more")), GoesOn("continues; it starts empty"), PARKED),
        Change("the first of a program", STATELESS, BASE, GoesOn("continues; it starts empty"), PARKED),
        Change("one less", stores(store("more"), store()), stores(store("more")), PARKED, MISSED),
        Change(
            "one less, and nothing is processed meanwhile",
            stores(store("more"), store()),
            stores(store("more")),
            PARKED,
            NOT_MISSED,
            quiet=True,
        ),
        Change(
            "one less, and `penstock stores accept` before the way back",
            stores(store("more"), store()),
            stores(store("more")),
            PARKED,
            GoesOn("comes back as it was when it was parked"),
            first_back="stores accept",
        ),
        Change(
            "one less, and `penstock stores drop` before the way back",
            stores(store("more"), store()),
            stores(store("more")),
            PARKED,
            EMPTY,
            first_back="stores drop",
        ),
        Change(
            "another name",
            BASE,
            stores(store("renamed")),
            GoesOn("continues; the new one starts empty, the old one is parked"),
            MISSED,
        ),
        Change(
            "in another sub-topology",
            flows(Flow(), STATELESS_RETURNS),
            flows(replace(Flow(), stores=()), replace(RETURNS, stores=(store(),))),
            Refused("its content belongs to the other tasks", f"store 'counts' was in sub-topology 0.*{NUMBERED}"),
        ),
    ],
    "Kinds of stores": [
        *(
            Change(f"`headers` of {name}", plain, headers)
            for name, plain, headers in (
                ("a key-value store", BASE, stores(store(headers=True))),
                ("a window store", stores(window()), stores(window(headers=True))),
                ("a session store", stores(session()), stores(session(headers=True))),
            )
        ),
        Change("`headers` of a store that was `timestamped`", TIMESTAMPED, stores(store(headers=True))),
        Change("`timestamped` of a window store", stores(window()), stores(window(timestamped=True))),
        Change("`cached`", BASE, stores(store(cached=True))),
        Change("`retention` of a window store", stores(window()), stores(window(retention="7d"))),
        Change("`window_size` of a window store", stores(window()), stores(window(window_size="2s"))),
        Change("`retention` of a session store", stores(session()), stores(session(retention="7d"))),
        Change("`history_retention` and `grace`", stores(versioned()), stores(versioned(history="7d", grace="1d"))),
        Change("`max_entries` of a map", stores(lru()), stores(lru(max_entries=2_000))),
        Change(
            "`retain_duplicates` of a window store",
            stores(window()),
            stores(window(retain_duplicates=True)),
            OTHER_KIND,
        ),
        *(
            Change(f"{name} in place of a key-value store", BASE, stores(kind), OTHER_KIND)
            for name, kind in (
                ("a window store", window()),
                ("a session store", session()),
                ("a versioned store", versioned()),
                ("a list store", list_store("counts")),
                ("a map with a bounded size", lru()),
            )
        ),
        *(
            Change(
                f"one less, {name}, and nothing is processed meanwhile",
                stores(kind),
                STATELESS,
                PARKED,
                NOT_MISSED,
                quiet=True,
            )
            for name, kind in (
                ("a window store", window()),
                ("a versioned store", versioned()),
                ("a list store", list_store("counts")),
            )
        ),
    ],
    "Processors and sinks": [
        Change("a processor more", BASE, with_flow(before=("check",), after=("format",))),
        Change("a processor less", with_flow(before=("check",), after=("format",)), BASE),
        Change("a processor by another name", BASE, with_flow(counter="counter")),
        Change("processors in another order", with_flow(before=("one", "two")), with_flow(before=("two", "one"))),
        Change("a sink to another topic", BASE, with_flow(sink="out-2")),
        Change("a sink less", BASE, with_flow(sink=None)),
        Change(
            "a schedule more",
            BASE,
            with_flow(timers=("a",)),
            GoesOn("continues; it begins then"),
            GoesOn("continues; it ends"),
        ),
        Change(
            "a schedule less",
            with_flow(timers=("a", "b")),
            with_flow(timers=("a",)),
            GoesOn("continues; it ends"),
            GoesOn("continues; it starts anew"),
        ),
        Change(
            "a schedule by another name",
            with_flow(timers=("a",)),
            with_flow(timers=("b",)),
            GoesOn("continues; one ends, one begins"),
            GoesOn("continues; one ends, one begins"),
        ),
        Change("schedules in another order", with_flow(timers=("a", "b")), with_flow(timers=("b", "a"))),
    ],
    "Sources": [
        Change(
            "a topic more",
            BASE,
            with_flow(topics=("orders", "returns")),
            GoesOn("continues; the new one as `offset_reset` says"),
        ),
        Change("a topic less", with_flow(topics=("orders", "returns")), BASE, GoesOn("continues; its positions stay")),
        Change(
            "another topic, with the stores of before",
            BASE,
            with_flow(topics=("returns",)),
            GoesOn("continues; the new one as `offset_reset` says"),
        ),
        Change(
            "another topic, without stores",
            STATELESS,
            with_flow(stores=(), topics=("returns",)),
            Refused(
                "it would take over another one's positions", "sub-topology 0 read 'orders' and now reads 'returns'"
            ),
        ),
        Change(
            "a pattern in place of a topic",
            BASE,
            with_flow(topics=(), pattern="orders.*"),
            GoesOn("continues; what else matches as `offset_reset` says"),
        ),
        Change("another name of the node", BASE, with_flow(source_name="incoming")),
        Change("another timestamp extractor", BASE, with_flow(source={"timestamp_extractor": wall_clock_timestamp})),
        Change("another `offset_reset`", BASE, with_flow(source={"offset_reset": "latest"})),
        Change(
            "more partitions of a topic, with stores",
            BASE,
            Version(grown={"orders": 3}),
            Refused("the content is divided by the old number", "'orders' had 2 partitions and has 3"),
        ),
        Change("more partitions of a topic, without stores", STATELESS, replace(STATELESS, grown={"orders": 3})),
    ],
    "Repartition topics": [
        Change(
            "one more, before a store",
            BASE,
            BY_KEY,
            Refused("the store is in another sub-topology", f"store 'counts' was in sub-topology 0.*{NUMBERED}"),
        ),
        Change(
            "one less, before a store",
            BY_KEY,
            BASE,
            Refused("the store is in another sub-topology", "store 'counts' was in sub-topology 1"),
        ),
        Change(
            "another name",
            BY_KEY,
            with_flow(repartition={"name": "keyed"}),
            GoesOn("continues"),
        ),
        Change(
            "another value serde",
            BY_KEY,
            with_flow(repartition={"value_serde": "json"}),
            GoesOn("continues"),
        ),
        Change(
            "another name, and records wait in it",
            BY_KEY,
            with_flow(repartition={"name": "keyed"}),
            Refused(
                "they would be lost",
                "'orders-by-key-repartition' is no longer in the program.*let the program that ran last process them",
            ),
            waiting=True,
        ),
        Change(
            "another value serde, and records wait in it",
            BY_KEY,
            with_flow(repartition={"value_serde": "json"}),
            Refused(
                "they could not be read",
                "'orders-by-key-repartition' was written for value_serde.*Let the program that ran last process them",
            ),
            waiting=True,
        ),
        Change(
            "another number of partitions",
            BY_KEY,
            with_flow(repartition={"partitions": 3}),
            Refused(
                "the topic is there with the old number",
                "orders-by-key-repartition.* exists with 2 partitions and the program needs 3",
            ),
        ),
    ],
    "Sub-topologies": [
        Change(
            "one more, behind",
            BASE,
            flows(Flow(), RETURNS),
            GoesOn("continues; the new one as `offset_reset` says"),
            PARKED,
        ),
        Change(
            "one more, in front",
            BASE,
            flows(RETURNS, Flow()),
            Refused("the others get other numbers", f"'orders' was in sub-topology 0.*{NUMBERED}"),
        ),
        Change("the last one less", flows(Flow(), RETURNS), BASE, PARKED, GoesOn("continues where it was")),
        Change(
            "the last one less, without stores",
            flows(Flow(), STATELESS_RETURNS),
            BASE,
            GoesOn("continues; its positions stay"),
            GoesOn("continues where it was"),
        ),
        Change(
            "the first one less",
            flows(Flow(), RETURNS),
            flows(RETURNS),
            Refused("the others get other numbers", f"'returns' was in sub-topology 1.*{NUMBERED}"),
        ),
    ],
    "Global stores": [
        Change("one more, behind the sub-topologies", BASE, replace(BASE, tables=(TABLE,))),
        Change(
            "one more, in front of them",
            BASE,
            replace(BASE, tables=(replace(TABLE, in_front=True),)),
            Refused("the sub-topologies get other numbers", f"'orders' was in sub-topology 0.*{NUMBERED}"),
        ),
        Change("one less", replace(BASE, tables=(TABLE,)), BASE),
        Change(
            "another topic",
            replace(BASE, tables=(TABLE,)),
            replace(BASE, tables=(replace(TABLE, topic="prices"),)),
            Refused(
                "it would contain both", "global store 'table' was filled from topic 'rates'.*give it another name"
            ),
        ),
        Change(
            "another serde",
            replace(BASE, tables=(TABLE,)),
            replace(BASE, tables=(Table(store("table", value_serde="json")),)),
            GoesOn("continues; it is filled again"),
        ),
    ],
    "Settings": [
        Change(
            "the kind of changelog: `topic:`",
            setting(changelog="directory:changelog"),
            setting(changelog="topic:"),
            Refused("there is no history of the state", "in the changelog 'directory'"),
            changelogs=("directory",),
        ),
        Change(
            "the kind of changelog: `directory:`",
            setting(changelog="topic:"),
            setting(changelog="directory:changelog"),
            Refused("there is no history of the state", "in the changelog 'topic'"),
            changelogs=("topic",),
        ),
        Change(
            "the directory of the changelog",
            BASE,
            setting(changelog="directory:elsewhere"),
            Refused("the state of a task is not there", "penstock changelog move"),
            changelogs=("directory",),
        ),
        Change(
            "the directory of the changelog, after `penstock changelog move`",
            BASE,
            setting(changelog="directory:elsewhere"),
            changelogs=("directory",),
            first="changelog move",
            first_back="changelog move",
        ),
        Change("`processing_guarantee`", BASE, setting(processing_guarantee="at_least_once")),
        Change("`offset_reset`", BASE, setting(offset_reset="latest")),
        Change("handlers", BASE, setting(deserialization_handler=skip, processing_handler=DeadLetter("dead"))),
        Change("`state_dir`", BASE, setting(state_dir="elsewhere/state"), GoesOn("continues; the state is restored")),
        Change(
            "`data_dir`, and the changelog is in it",
            BASE,
            setting(data_dir="HERE/moved"),
            Refused("the state of a task is not there", "penstock changelog move"),
            changelogs=("directory",),
        ),
        Change(
            "`data_dir`, and the changelog is elsewhere",
            setting(changelog="directory:HERE/shared"),
            setting(changelog="directory:HERE/shared", data_dir="HERE/moved"),
            GoesOn("continues; the state is restored"),
            GoesOn("continues; the state is restored"),
            changelogs=("directory",),
        ),
        Change(
            "`data_dir`",
            BASE,
            setting(data_dir="HERE/moved"),
            GoesOn("continues; the state is restored"),
            GoesOn("continues; the state is restored"),
            changelogs=("topic",),
        ),
        Change(
            "the application's id",
            BASE,
            Version(application="other"),
            GoesOn("starts from the beginning"),
            GoesOn("continues where it was"),
        ),
    ],
}
