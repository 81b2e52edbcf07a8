"""The contracts of kinds of stores, handlers, renderers and settings find each of these planted bugs."""

from __future__ import annotations

import itertools
import re
from collections.abc import Container, Iterator
from typing import Any

import pytest
from hypothesis import strategies as st

from penstock import ConfigError, DeadLetter, Processor, Record, Retry, Setting, Topology, fail, skip
from penstock.hooks import registry
from penstock.plugins.testing.contracts.handler import HandlerContract
from penstock.plugins.testing.contracts.processor import ProcessorContract
from penstock.plugins.testing.contracts.serde import SerdeContract
from penstock.plugins.testing.contracts.state_store import StateStoreContract
from penstock.plugins.testing.contracts.store_backend import StoreBackendContract
from penstock.plugins.testing.contracts.store_kinds import CALLS, SPECS, StoreKindsContract
from penstock.plugins.testing.driver import TopologyTestDriver
from penstock.plugins.testing.mock_context import MockProcessorContext
from penstock.settings.names import NoCounterpartError
from penstock.settings.types import SettingType, expecting, optional, whole_number

from ..rotation import of_today
from . import planted_handlers as handlers
from . import planted_kinds as kinds
from .planted_kinds import TestNumbered as TestNumbered
from .planted_kinds import TestTags as TestTags
from .renderer_contract import RendererContract
from .setting_contract import SettingContract, VocabularyContract

# ---------------------------------------------------------------- what is right


@pytest.mark.parametrize("name", of_today(list(SPECS), 2))
def test_our_own_kinds_keep_the_contract(name: str) -> None:
    suite = type("Suite", (StateStoreContract,), {"spec": SPECS[name], "calls": CALLS[name], "examples": 15})()
    assert list(failures(suite)) == []


class TestRightHandler(HandlerContract):
    handler = handlers.Right()
    topics = ("failed",)


@pytest.mark.parametrize("handler", [fail, skip, DeadLetter("failed"), Retry(2), Retry(1, "2s", DeadLetter("failed"))])
def test_our_own_handlers_keep_the_contract(handler: Any) -> None:
    suite = type("Suite", (HandlerContract,), {"handler": staticmethod(handler), "topics": ("failed",)})()
    assert list(failures(suite)) == []


@pytest.mark.parametrize("name", ["text", "mermaid", "dot", "svg", "json"])
def test_our_own_renderers_keep_the_contract(name: str) -> None:
    suite = type("Suite", (RendererContract,), {"renderer": staticmethod(registry().load("renderer", name))})()
    assert list(failures(suite)) == []


class TestRightSetting(SettingContract):
    setting = Setting("acme.limit", optional(whole_number()), None, "The most records of a key.")
    accepted = {"5": 5, "none": None}
    refused = ("many", 0, "0", True, 1.5)


# ---------------------------------------------------------------- what is planted

KINDS: list[tuple[str, str]] = [
    ("KeepsAnAttribute", "one that was never closed"),
    ("KeepsItInTheClass", "in its class or module|one that was never closed|the rows are"),
    ("NeverDiscards", "one that was never closed"),
    ("FlushesSome", "one that was never closed"),
    ("FlushesAgain", "nothing to write, and wrote|one that was never closed"),
    ("NeverCountsDown", "after flush nothing waits"),
    ("HandsOutItsOwn", "one that was never closed"),
    ("WritesInTheOrderOfHashes", "in another process"),
    ("WritesTheTime", "in another process"),
    ("WritesWhereItReads", "is of the reading half, and wrote"),
    ("BreaksWhereItWrites", "one that was never closed"),
    ("KeepsWhatItFlushed", "one that was never closed"),
    ("KnowsWhatIsNotThere", "one that was never closed"),
    ("CountsInAByte", "one that was never closed"),
    ("ForgetsWhenItExpires", "one that was never closed"),
    ("TimesInFourBytes", "int too big"),
    ("WritesTheLocalDay", "other hashes, time zone and decimal context"),
    ("RoundsByTheContext", "other hashes, time zone and decimal context"),
    ("AnswersInTheOrderOfHashes", r"\('keys',\) answers"),
    ("RowsOfText", "store 'tags'.* rows are bytes, and no text"),
    ("RowsThatChange", "rows are bytes, and no text"),
    ("IteratesOverItsDict", "must not fail where the store is changed"),
]


@pytest.mark.parametrize(("kind", "rule"), KINDS)
def test_a_planted_kind_is_found(kind: str, rule: str) -> None:
    attributes = {"spec": kinds.TagsSpec("tags", variant=kind), "examples": 40, "shrinks": False}
    check_found(type("Suite", (TestTags,), attributes)(), rule)


@pytest.mark.parametrize("kind", ["TenBeforeTwo", "JoinsWithAColon", "KeepsOneAfterMonths"])
def test_a_planted_kind_is_found_by_its_reference(kind: str) -> None:
    attributes = {"spec": kinds.NumberedSpec("numbered", variant=kind), "shrinks": False, "examples": 40}
    suite = type("Suite", (TestNumbered,), attributes)()
    with pytest.raises(AssertionError, match="and the reference"):
        suite.test_it_answers_as_the_reference()


@pytest.mark.parametrize(
    ("spec", "rule"), [(kinds.OtherSerdeSpec, "its serde cannot read the key"), (kinds.TextKeysSpec, "bytes or None")]
)
def test_a_planted_place_of_keys_is_found(spec: type[kinds.TagsSpec], rule: str) -> None:
    check_found(type("Suite", (TestTags,), {"spec": spec("tags"), "examples": 10, "shrinks": False})(), rule)


def test_a_planted_kind_is_found_by_calls_with_any_text() -> None:
    texts = st.text(max_size=3)
    calls = st.tuples(st.just("add"), texts, texts) | st.tuples(st.sampled_from(["clear", "get"]), texts)
    attributes = {"spec": kinds.TagsSpec("tags", variant="KeepsWhatItRead"), "calls": calls, "shrinks": False}
    check_found(type("Suite", (StateStoreContract,), attributes)(), "one that was never closed")


@pytest.mark.parametrize(
    ("attributes", "rule"),
    [
        ({"calls": st.just(("get", "a"))}, "no `calls` left a row in store 'tags' .TagsSpec."),
        ({"calls": st.just(("put", "a", 1))}, "'put', and the store 'tags' .Tags. has no such method"),
        ({"calls": st.just(("add", "a"))}, "Tags.add takes other arguments: missing a required argument: 'tag'"),
        (
            {"spec": kinds.BuildsNothingSpec("tags")},
            "store 'tags': BuildsNothingSpec built None, expected a StateStore",
        ),
    ],
)
def test_a_wrong_suite_of_a_kind_is_refused(attributes: dict[str, Any], rule: str) -> None:
    check_found(type("Suite", (TestTags,), {"examples": 5, "shrinks": False, **attributes})(), rule)


class Idle(Processor):
    def process(self, record: Record) -> None:
        pass


def test_a_kind_that_builds_nothing_is_named() -> None:
    spec = kinds.BuildsNothingSpec("tags")
    topology = Topology().add_source("in", "in").add_processor("p", Idle, "in", stores=[spec])
    rule = "store 'tags': BuildsNothingSpec built None, expected a StateStore: let its `build`"
    with pytest.raises(ConfigError, match=rule), TopologyTestDriver(topology) as driver:
        driver.pipe("in", "key", "value")
    with pytest.raises(ConfigError, match=rule):
        MockProcessorContext(spec)


CONTRACTS: list[tuple[type, str]] = [
    (StateStoreContract, "spec"),
    (StateStoreContract, "calls"),
    (StoreBackendContract, "open"),
    (StoreKindsContract, "open"),
    (ProcessorContract, "program"),
    (ProcessorContract, "reference"),
    (SerdeContract, "serde"),
    (SerdeContract, "values"),
]


@pytest.mark.parametrize(("contract", "attribute"), CONTRACTS)
def test_a_suite_without_an_attribute_says_so(contract: type, attribute: str) -> None:
    with pytest.raises(AssertionError, match=f"Mine: a .*Contract without `{attribute}`: set it in the class; it is"):
        getattr(type("Mine", (contract,), {})(), attribute)
    assert not hasattr(type("Mine", (contract,), {}), attribute)


HANDLERS: list[tuple[type[handlers.Right], str]] = [
    (handlers.NeedsARecord, "must not raise: asked about .*a punctuator|must not raise"),
    (handlers.NeedsAMessage, "must not raise: .*IndexError"),
    (handlers.NeedsAMessageOfItsType, r"must not raise: asked about ValueError\(\) .*IndexError"),
    (handlers.NeedsText, "must not raise: .*UnicodeDecodeError"),
    (handlers.NeedsAnObject, "must not raise: .*b'null'.*AttributeError"),
    (handlers.CountsInHeaders, "must not raise: .*ValueError"),
    (handlers.ReturnsNothing, "returned None, expected"),
    (handlers.ReturnsAClass, "returned <class .*Skip'>, expected"),
    (handlers.TriesForEver, "a task would never go on"),
    (handlers.CountsItself, "asked again about"),
    (handlers.DelaysBySeconds, "RetryAfter.delay"),
    (handlers.DelaysTwiceAsLong, "expected up to an hour"),
    (handlers.NamesATopicByTheError, "no topic's name"),
    (handlers.SendsBack, "would fail there again|`topics` are"),
    (handlers.TopicByHash, "in another process|`topics` are"),
    (handlers.ChangesTheError, "must not change the error"),
    (handlers.TriesLongerAndLonger, "expected up to an hour"),
    (handlers.TriesLessAtNight, "at another time by the machine's clock"),
    (handlers.TriesByTheClock, "at another time by the machine's clock"),
    (handlers.LessForOldRecords, "at another time by the machine's clock"),
    (handlers.MoreForAMinute, "at another time by the machine's clock"),
    (handlers.SkipsTheFuture, "at another time by the machine's clock"),
    (handlers.SkipsTheFutureByAnHour, "at another time by the machine's clock"),
    (handlers.OlderThanThirtyDays, "at another time by the machine's clock"),
    (handlers.MoreAtFirst, "at another time by the machine's clock"),
    (handlers.KeyWithContent, "must not raise: .*IndexError"),
    (handlers.EndsBeforeTheYear10000, "must not raise: .*OverflowError"),
    (handlers.KnowsItsNodeOnly, "must not raise: .*KeyError"),
    (handlers.HasALock, "cannot be pickled"),
]


@pytest.mark.parametrize(("handler", "rule"), HANDLERS)
def test_a_planted_handler_is_found(handler: type[handlers.Right], rule: str) -> None:
    topics = tuple(f"failed-{number}" for number in range(5)) if handler is handlers.TopicByHash else ("failed",)
    check_found(type("Suite", (HandlerContract,), {"handler": handler(), "topics": topics})(), rule)


_counter = itertools.count()


def _names(program: Any) -> list[str]:
    stores = [store.name for store in program.all_stores()]
    return [*program.nodes, *program.topics(), *program.sink_topics(), *stores]


def renders_bytes(program: Any) -> Any:
    return " ".join(_names(program)).encode()


def renders_no_stores(program: Any) -> str:
    return " ".join([*program.nodes, *program.topics(), *program.sink_topics()])


def renders_ten_nodes(program: Any) -> str:
    return " ".join(name for name in _names(program) if "-11" not in name)


def renders_no_beginnings(program: Any) -> str:
    names = _names(program)
    return " ".join(name for name in names if not any(other.startswith(name) and other != name for other in names))


def renders_with_a_number(program: Any) -> str:
    return f"{next(_counter)} {' '.join(_names(program))}"


def renders_a_set(program: Any) -> str:
    return " ".join({*_names(program)})


def renders_with_ids(program: Any) -> str:
    return f"{hash('drawing')} {' '.join(_names(program))}"


def needs_a_sink(program: Any) -> str:
    return f"{program.sink_topics()[0]} {' '.join(_names(program))}"


RENDERERS = [
    (renders_bytes, "returns text"),
    (renders_no_stores, "each of the stores, and lacks"),
    (renders_ten_nodes, "each of the nodes, and lacks 'branch-11'"),
    (renders_no_beginnings, "except as a part of longer names"),
    (renders_with_a_number, "was rendered as"),
    (renders_a_set, "in another process"),
    (renders_with_ids, "in another process"),
    (needs_a_sink, "writes any program, and raised"),
]


@pytest.mark.parametrize(("renderer", "rule"), RENDERERS)
def test_a_planted_renderer_is_found(renderer: Any, rule: str) -> None:
    check_found(type("Suite", (RendererContract,), {"renderer": staticmethod(renderer)})(), rule)


def raises_as_int_does(setting: str, text: str, load: Any) -> Any:
    return int(text)


def says_nothing(setting: str, value: Any) -> Any:
    if type(value) is not int:
        raise ConfigError("wrong value")
    return value


def cuts_numbers(setting: str, value: Any) -> Any:
    if type(value) not in (int, float):
        raise ConfigError(f"{setting}: expected a number, found {value!r}")
    return int(value)


def says_yes_for_one(setting: str, value: Any) -> Any:
    if value not in (True, False):
        raise ConfigError(f"{setting}: expected true or false, found {value!r}")
    return value


NUMBERS = whole_number()
SETTINGS: list[tuple[Setting[Any], str]] = [
    (Setting("limit", NUMBERS, 5, "The most records."), "PLUGIN.NAME"),
    (Setting("acme.Limit", NUMBERS, 5, "The most records."), "PLUGIN.NAME"),
    (Setting("acme.limit", NUMBERS, 5, "the most records"), "is a sentence"),
    (Setting("acme.limit", NUMBERS, 0, "The most records."), "must be accepted, and was refused"),
    (Setting("acme.limit", SettingType(NUMBERS.check), 5, "The most records."), "must be accepted"),
    (
        Setting("acme.limit", SettingType(NUMBERS.check, raises_as_int_does), 5, "The most records."),
        "and raised ValueError",
    ),
    (Setting("acme.limit", SettingType(says_nothing, NUMBERS.of_text), 5, "The most records."), "begins with what"),
    (
        Setting(
            "acme.limit", SettingType(expecting("a number", lambda value: True, float), NUMBERS.of_text), 5.0, "Most."
        ),
        "is 5.0, expected 5|must be refused|and raised",
    ),
]


@pytest.mark.parametrize(("setting", "rule"), SETTINGS)
def test_a_planted_setting_is_found(setting: Setting[Any], rule: str) -> None:
    check_found(
        type("Suite", (SettingContract,), {"setting": setting, "accepted": {"5": 5}, "refused": ("many", 1.5)})(), rule
    )


YES = SettingType(says_yes_for_one, lambda setting, text, load: {"true": True, "false": False}.get(text, text))
CLOSE: list[tuple[Setting[Any], dict[str, Any], str]] = [
    (
        Setting("acme.limit", SettingType(cuts_numbers, NUMBERS.of_text), 5, "The most records."), {"5": 5},
        "5.5 is kept as 5, which is another number",
    ),
    (Setting("acme.on", YES, False, "Whether it is on."), {"true": True, "false": False}, "which is equal to it"),
]  # fmt: skip


@pytest.mark.parametrize(("setting", "accepted", "rule"), CLOSE)
def test_a_setting_that_takes_close_values_for_one_is_found(
    setting: Setting[Any], accepted: dict[str, Any], rule: str
) -> None:
    check_found(type("Suite", (SettingContract,), {"setting": setting, "accepted": accepted})(), rule)


@pytest.mark.parametrize("name", ["kafka_streams", "librdkafka"])
def test_our_own_vocabularies_keep_the_contract(name: str) -> None:
    vocabulary = registry().load("settings vocabulary", name)
    suite = type("Suite", (VocabularyContract,), {"vocabulary": vocabulary})()
    assert list(failures(suite)) == []


class Names:
    """A vocabulary with two names."""

    owner = "Acme"
    prefixes = ("consumer.",)

    def names(self) -> list[str]:
        return ["threads", "color"]

    def knows(self, name: str) -> bool:
        return name.removeprefix("consumer.") in self.names()

    def translate(self, name: str, value: Any) -> Any:
        if name.endswith("color"):
            raise NoCounterpartError("color has no counterpart here: nothing is coloured")
        return "parallelism", value


class NamesTwice(Names):
    def names(self) -> list[str]:
        return ["threads", "color", "threads"]


class NoPrefix(Names):
    def knows(self, name: str) -> bool:
        return name in self.names()


class KnowsAnything(Names):
    def knows(self, name: str) -> bool:
        return True


class NamesNoSetting(Names):
    def translate(self, name: str, value: Any) -> Any:
        return "paralelism", value


class RaisesWhatIntDoes(Names):
    def translate(self, name: str, value: Any) -> Any:
        return "parallelism", int(value)


VOCABULARIES = [
    (NamesTwice, "each name once"),
    (NoPrefix, "it is known"),
    (KnowsAnything, "is of no vocabulary"),
    (NamesNoSetting, "which is no setting"),
    (RaisesWhatIntDoes, "must raise ConfigError, and raised"),
]


@pytest.mark.parametrize(("vocabulary", "rule"), VOCABULARIES)
def test_a_planted_vocabulary_is_found(vocabulary: type[Names], rule: str) -> None:
    assert list(failures(type("Suite", (VocabularyContract,), {"vocabulary": Names()})())) == []
    check_found(type("Suite", (VocabularyContract,), {"vocabulary": vocabulary()})(), rule)


OF_PROCESSES = {
    "test_a_decision_depends_on_the_failure_alone", "test_a_program_always_looks_the_same",
    "test_equal_histories_have_equal_rows",
}  # fmt: skip
"""The tests that compare two processes."""


def failures(suite: Any, first: Container[str] = ()) -> Iterator[str]:
    """Yield what each test of a suite says that fails; those of `first` first."""
    names = [each for each in dir(suite) if each.startswith("test_")]
    for name in sorted(names, key=lambda each: (each not in first, each)):
        try:
            getattr(suite, name)()
        except pytest.skip.Exception:
            pass
        except (Exception, pytest.fail.Exception) as error:
            yield f"{name}: {type(error).__name__}: {error}"


def check_found(suite: Any, rule: str) -> None:
    """Run the tests of a suite until one fails as the rule says."""
    found: list[str] = []
    for each in failures(suite, OF_PROCESSES if "in another process" in rule else ()):
        found.append(each)
        if re.search(rule, each, re.DOTALL):
            return
    pytest.fail(f"no test named {rule!r}; the suite says {found}")
