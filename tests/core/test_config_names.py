"""Names of settings in three vocabularies: what each becomes, and what is said about the others."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import Application, ConfigError, DeadLetter, Retry, Settings, Topology, fail, skip
from penstock.hooks import Registry, hookimpl
from penstock.plugins.logs.kafka.client_names import JAVA_ONLY, KNOWN, RENAMED
from penstock.plugins.operate.settings.kafka_streams import KAFKA_STREAMS, WITHOUT_COUNTERPART
from penstock.program.extractors import wall_clock_timestamp
from penstock.settings import sources
from penstock.settings.layers import Layer
from penstock.settings.names import NoCounterpartError, translate
from penstock.settings.secret import is_secret

OWN = Settings.names()
KAFKA_STREAMS_4_4 = """
acceptable.recovery.lag allow.os.group.write.access application.id application.server bootstrap.servers
buffered.records.per.partition built.in.metrics.version cache.max.bytes.buffering client.id commit.interval.ms
config.providers connections.max.idle.ms default.client.supplier default.deserialization.exception.handler
default.dsl.store default.interactive.query.isolation.level default.key.serde default.list.key.serde.inner
default.list.key.serde.type default.list.value.serde.inner default.list.value.serde.type
default.production.exception.handler default.timestamp.extractor default.value.serde deserialization.exception.handler
dsl.store.format dsl.store.suppliers.class enable.metrics.push enable.transactional.statestores
ensure.explicit.internal.resource.naming errors.dead.letter.queue.topic.name group.protocol log.summary.interval.ms
max.task.idle.ms max.warmup.replicas metadata.cluster.check.enable metadata.max.age.ms
metadata.recovery.rebootstrap.trigger.ms metadata.recovery.strategy metric.reporters metrics.num.samples
metrics.recording.level metrics.sample.window.ms num.standby.replicas num.stream.threads poll.ms
probing.rebalance.interval.ms processing.exception.handler processing.exception.handler.global.enabled
processing.guarantee processor.wrapper.class production.exception.handler rack.aware.assignment.non_overlap_cost
rack.aware.assignment.strategy rack.aware.assignment.tags rack.aware.assignment.traffic_cost receive.buffer.bytes
reconnect.backoff.max.ms reconnect.backoff.ms repartition.purge.interval.ms replication.factor request.timeout.ms
retry.backoff.ms rocksdb.config.setter security.protocol send.buffer.bytes state.cleanup.delay.ms
state.cleanup.dir.max.age.ms state.dir statestore.cache.max.bytes statestore.uncommitted.max.bytes task.assignor.class
task.timeout.ms topology.description.push.enabled topology.optimization upgrade.from window.size.ms
windowed.inner.class.serde windowstore.changelog.additional.retention.ms
"""
PASSWORDS = """
sasl.jaas.config sasl.oauthbearer.assertion.private.key.passphrase
sasl.oauthbearer.client.credentials.client.secret ssl.key.password ssl.keystore.certificate.chain
ssl.keystore.key ssl.keystore.password ssl.truststore.certificates ssl.truststore.password
"""
"""Names of type PASSWORD in Kafka 4.3's consumer, producer and admin client."""


def make(given: dict[str, Any]) -> Settings:
    return Settings.make(given)


@pytest.mark.parametrize(
    ("name", "value", "setting", "expected"),
    [
        ("bootstrap.servers", "a:1, b:2", "log", "kafka:a:1,b:2"),
        ("bootstrap.servers", ["a:1", "b:2"], "log", "kafka:a:1,b:2"),
        ("processing.guarantee", "exactly_once_v2", "processing_guarantee", "exactly_once"),
        ("commit.interval.ms", 100, "commit_interval", "100ms"),
        ("commit.interval.ms", "100", "commit_interval", "100ms"),
        ("commit.interval", "5s", "commit_interval", "5s"),
        ("commit-interval", "5s", "commit_interval", "5s"),
        ("max.task.idle.ms", -1, "max_task_idle", None),
        ("max.task.idle.ms", "0", "max_task_idle", "0ms"),
        ("state.dir", "/there", "state_dir", "/there"),
        ("num.stream.threads", "3", "parallelism", 3),
        ("replication.factor", "3", "replication_factor", 3),
        ("metadata.cluster.check.enable", "false", "cluster_check", False),
        ("task.timeout.ms", 7, "task_timeout", "7ms"),
        ("state.cleanup.delay.ms", 7, "state_cleanup_delay", "7ms"),
        ("auto.offset.reset", "latest", "offset_reset", "latest"),
        ("consumer.auto.offset.reset", "latest", "offset_reset", "latest"),
        ("auto.offset.reset", "by_duration:PT24H", "offset_reset", "86400000ms"),
        ("consumer.auto.offset.reset", "by_duration:P1DT1H1M0.5S", "offset_reset", "90060500ms"),
        ("auto.offset.reset", "1d", "offset_reset", "1d"),
        ("default.key.serde", "org.apache.kafka.common.serialization.Serdes$StringSerde", "key_serde", "str"),
        ("default.value.serde", "org.apache.kafka.common.serialization.Serdes$LongSerde", "value_serde", "int"),
        ("default.value.serde", "Serdes$IntegerSerde", "value_serde", "int32"),
        ("default.value.serde", "Serdes$ShortSerde", "value_serde", "int16"),
        ("default.value.serde", "Serdes$FloatSerde", "value_serde", "float32"),
        ("default.value.serde", "Serdes$UUIDSerde", "value_serde", "uuid"),
        ("default.value.serde", "Serdes$VoidSerde", "value_serde", "void"),
        ("default.value.serde", "json", "value_serde", "json"),
        ("default.dsl.store", "in_memory", "store_backend", "memory"),
        ("processing.exception.handler", "org.apache.kafka.streams.errors.LogAndContinueProcessingExceptionHandler", "processing_handler", skip),
        ("deserialization.exception.handler", "LogAndContinueExceptionHandler", "deserialization_handler", skip),
        ("default.deserialization.exception.handler", skip, "deserialization_handler", skip),
        ("production.exception.handler", "org.apache.kafka.streams.errors.DefaultProductionExceptionHandler", "production_handler", fail),
        ("default.timestamp.extractor", "org.apache.kafka.streams.processor.WallclockTimestampExtractor", "timestamp_extractor", wall_clock_timestamp),
        ("security.protocol", "SSL", "clients", {"security.protocol": "SSL"}),
        ("consumer.fetch.min.bytes", 5, "clients", {"consumer.fetch.min.bytes": "5"}),
        ("main.consumer.fetch.min.bytes", 5, "clients", {"consumer.fetch.min.bytes": "5"}),
        ("producer.max.request.size", 5, "clients", {"producer.message.max.bytes": "5"}),
        ("admin.retries", 5, "clients", {"admin.retries": "5"}),
        ("topic.segment.bytes", 5, "topic_config", {"segment.bytes": "5"}),
        ("topic_config.unclean.leader.election.enable", False, "topic_config", {"unclean.leader.election.enable": "false"}),
        ("clients.too.new.to.know", "x", "clients", {"too.new.to.know": "x"}),
        ("user.limit", 5, "user", {"limit": 5}),
    ],
)  # fmt: skip
def test_a_name_of_any_vocabulary_sets_ours(name: str, value: Any, setting: str, expected: Any) -> None:
    assert make({name: value})[setting] == expected


def test_main_consumer_wins_over_consumer() -> None:
    for names in (["main.consumer.acks", "consumer.acks"], ["consumer.acks", "main.consumer.acks"]):
        settings = make({name: name.partition(".")[0] for name in names})
        assert settings.clients == {"consumer.acks": "main"}


@pytest.mark.parametrize("name", KAFKA_STREAMS_4_4.split())
def test_every_name_of_kafka_streams_has_an_answer(name: str) -> None:
    if name not in WITHOUT_COUNTERPART:
        translate(name, "3", OWN)
        return
    with pytest.raises(ConfigError, match=rf"^'{re.escape(name)}' of Kafka Streams has no counterpart here: .{{10,}}"):
        translate(name, "3", OWN)


@pytest.mark.parametrize("name", [*KAFKA_STREAMS, *WITHOUT_COUNTERPART])
def test_every_name_of_kafka_streams_is_documented(name: str) -> None:
    page = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text()
    row = re.search(rf"^\| `{re.escape(name)}` \|(.*)$", page, re.MULTILINE)
    assert row, name
    says = KAFKA_STREAMS[name][0] if name in KAFKA_STREAMS else WITHOUT_COUNTERPART[name][0]
    assert says in row[1]


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, (_, accepted) in WITHOUT_COUNTERPART.items() for value in accepted]
)
def test_what_is_so_anyway_may_be_said(name: str, value: str) -> None:
    assert make({name: value.upper()}) == Settings()
    with pytest.raises(ConfigError, match=re.escape(name)):
        make({name: "something else"})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"restore.consumer.fetch.min.bytes": 1}, "no counterpart here: state is restored from `changelog`"),
        ({"topic.segment.bytes": []}, "setting 'topic_config': 'segment.bytes': expected text, a number or a boolean"),
        ({"topic_config": "segment.bytes"}, "setting 'topic_config': expected a mapping of topic settings such as"),
        ({"sasl.jaas.config": "x"}, "Java's clients only, not librdkafka's: set sasl.username and sasl.password"),
        ({"consumer.ssl.truststore.location": "x"}, "set ssl.ca.location to a PEM file"),
        ({"commit.interval.ms": "5s"}, "'commit.interval.ms': expected a whole number of milliseconds, found '5s'"),
        ({"commit.interval.ms": True}, "'commit.interval.ms': expected a whole number of milliseconds"),
        ({"max.task.idle.ms": -2}, "'max.task.idle.ms': expected a whole number"),
        ({"num.stream.threads": "few"}, "'parallelism': expected a whole number"),
        ({"auto.offset.reset": "none"}, "'offset_reset': expected 'earliest', 'latest', or how far back in time"),
        ({"auto.offset.reset": "by_duration:24h"}, "expected earliest, latest, or by_duration: with a length such as PT"),
        ({"auto.offset.reset": "by_duration:PT"}, "found 'by_duration:PT'"),
        ({"default.key.serde": "com.acme.OrderSerde"}, r"no serde here for the Java class 'com.acme.OrderSerde': write"),
        ({"default.key.serde": "Serdes$ListSerde"}, r"no serde here for the Java class.*write list:INNER, e.g. list:int32"),
        ({"processing.exception.handler": "com.acme.Handler"}, "no handler here for the Java class.*MODULE:ATTR"),
        ({"comit.interval.ms": 5}, "unknown setting 'comit.interval.ms'; did you mean .*'commit.interval.ms'"),
        ({"comit_interval": 5}, "did you mean 'commit_interval' or 'commit.interval.ms'"),
        ({"securty.protocol": 5}, "did you mean 'security.protocol'"),
        ({"consumer.fetch.min.byte": 5}, "did you mean 'consumer.fetch.min.bytes'"),
        ({"log": "local:x", "bootstrap.servers": "a:1"}, "'log' and 'bootstrap.servers' set the same, and differently"),
        ({"errors.dead.letter.queue.topic.name": "dlq"}, "no handler skips records, so nothing would be sent to 'dlq'"),
        ({"dead_letter_topic": ""}, "'dead_letter_topic': expected the name of a topic"),
        ({5: 5}, "expected the name of a setting, found 5"),
    ],
    ids=str,
)  # fmt: skip
def test_what_cannot_be_is_refused_with_what_to_do(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(given)


def test_the_dead_letter_topic_is_for_handlers_that_skip() -> None:
    settings = make({"processing_handler": skip, "errors.dead.letter.queue.topic.name": "dlq"})
    assert settings.processing_handler == DeadLetter("dlq")
    assert settings.production_handler is fail
    behind = make({"production_handler": Retry(2, then=skip), "dead_letter_topic": "dlq"}).production_handler
    assert behind == Retry(2, then=DeadLetter("dlq"))
    with pytest.raises(ConfigError, match="no handler skips"):
        make({"production_handler": Retry(2), "dead_letter_topic": "dlq"})
    both = make({"processing_handler": DeadLetter("mine"), "production_handler": skip, "dead_letter_topic": "dlq"})
    assert (both.processing_handler, both.production_handler) == (DeadLetter("mine"), DeadLetter("dlq"))
    with pytest.raises(ConfigError, match="no handler skips"):
        make({"production_handler": Retry(2, then=DeadLetter("mine")), "dead_letter_topic": "dlq"})
    application = Application("a", Topology().add_source("in", "in"), processing_handler=skip, dead_letter_topic="dlq")
    assert application.with_settings(dead_letter_topic="other").settings.processing_handler == DeadLetter("other")
    assert application.with_settings(processing_handler=fail, production_handler=skip).settings.production_handler == (
        DeadLetter("dlq")
    )


def test_names_of_clients_do_not_overlap() -> None:
    assert not KNOWN & JAVA_ONLY
    assert not set(RENAMED) & (KNOWN | JAVA_ONLY)
    assert set(RENAMED.values()) <= KNOWN


@pytest.mark.parametrize("name", PASSWORDS.split())
def test_what_kafka_takes_for_a_password_is_a_secret(name: str) -> None:
    # A certificate is public, but Kafka hides it, too.
    assert is_secret(name, "-----BEGIN" if "certificate" in name else "")


@given(
    st.sampled_from(sorted(KNOWN - {"auto.offset.reset", "bootstrap.servers"} - set(WITHOUT_COUNTERPART))),
    st.sampled_from(["", "consumer.", "producer.", "admin."]),
)
def test_a_name_of_a_client_stays_as_it_is(name: str, prefix: str) -> None:
    assert translate(prefix + name, "x", OWN) == (("clients", prefix + name), "x")


def test_our_own_names_load_no_vocabulary() -> None:
    program = """
import sys
from penstock import Application, Settings, Topology
from penstock.config_sources import layers
Settings.make({"log": "local:x", "clients": {"acks": "all"}, "user.limit": 3})
layers(None, {"PENSTOCK_COMMIT_INTERVAL": "5s", "PENSTOCK_USER_A": "1"}, ["state_serde=json", "clients.acks=1"])
Application("a", Topology().add_source("in", "in"), commit_interval="1s")
print([name for name in sys.modules if name.endswith(("settings.kafka_streams", "client_names"))])
Settings.make({"commit.interval.ms": 5, "acks": 1})
print([name for name in sys.modules if name.startswith("confluent_kafka")])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=240)
    assert done.stdout.splitlines() == ["[]", "[]"]


class AcmeNames:
    owner = "Acme"
    prefixes = ("acme.",)

    def names(self) -> list[str]:
        return ["flush.seconds", "threads"]

    def knows(self, name: str) -> bool:
        return name.removeprefix("acme.") in self.names()

    def translate(self, name: str, value: Any) -> tuple[str, Any]:
        if name.endswith("threads"):
            raise NoCounterpartError(f"{name!r} of Acme has no counterpart here: set `parallelism`")
        return "commit_interval", f"{value}s"


class AcmePlugin:
    @hookimpl
    def penstock_settings_vocabularies(self) -> dict[str, Any]:
        return {"acme": AcmeNames()}


@pytest.fixture
def acme(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    registry = Registry([("acme", "acme", "1.0", AcmePlugin())], {})
    monkeypatch.setattr("penstock.settings.names.registry", lambda: registry)
    sources._names_of_vocabularies.cache_clear()
    yield
    sources._names_of_vocabularies.cache_clear()


@pytest.mark.usefixtures("acme")
def test_a_vocabulary_of_a_plugin() -> None:
    assert make({"acme.flush.seconds": 5}).commit_interval == make({"flush.seconds": 5}).commit_interval == "5s"
    variable = {"PENSTOCK_ACME_FLUSH_SECONDS": "5"}
    assert sources.environment_layer(variable).values == {"commit_interval": "5s"}
    for name, message in {
        "acme.threads": "^'acme.threads' of Acme has no counterpart here: set `parallelism`$",
        "acme.flush.second": "^unknown setting 'acme.flush.second'; did you mean 'acme.flush.seconds'",
        "zzz": "^unknown setting 'zzz'; known: data_dir, .*, and the names of Acme ",
        "max.warmup.replicas": "^unknown setting 'max.warmup.replicas'",
    }.items():
        with pytest.raises(ConfigError, match=message):
            make({name: 1})


LAYERS = st.dictionaries(
    st.sampled_from(["log", "commit_bytes", ("clients", "acks"), ("clients", "retries"), ("user", "a"), ("user", "b")]),
    st.integers(),
    max_size=6,
)


@given(LAYERS, LAYERS, LAYERS)
def test_layers_lie_on_each_other(first: Any, second: Any, third: Any) -> None:
    """Each setting has the value of the highest layer that has it, however they are put together."""
    one, two, three = (Layer(each, dict.fromkeys(each, str(n))) for n, each in enumerate((first, second, third)))
    together = three.over(two).over(one)
    assert together == three.over(two.over(one))
    assert together.values == {**first, **second, **third}
    assert {
        key: (first, second, third)[int(origin)][key] for key, origin in together.origins.items()
    } == together.values
    assert one.over(Layer()) == one == Layer().over(one)
