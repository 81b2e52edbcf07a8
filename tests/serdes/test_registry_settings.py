"""The settings of an application that name its schema registry."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from penstock import (
    Application,
    ConfigError,
    Serde,
    TopicPartition,
    Topology,
    ValueTransformer,
    Windowed,
    key_value_store,
)
from penstock.dsl import StreamsBuilder, TimeWindowedSerde, sessions
from penstock.errors import SerdeUnavailableError
from penstock.plugins.serdes.registry.avro import AvroSerde
from penstock.plugins.serdes.registry.settings import SCHEMA_REGISTRY
from penstock.support.user_line import user_line
from penstock.testing import TopologyTestDriver

from .schema_registry import SchemaRegistry, running

ORDER = """{"type": "record", "name": "Order", "namespace": "shop", "fields": [
    {"name": "user", "type": "string"}, {"name": "amount", "type": "long"}]}"""


class Shouts(ValueTransformer):
    """Keeps the last order of a user, and answers it with a longer name."""

    @classmethod
    def stores(cls) -> list[Any]:
        return [key_value_store("orders", value_serde="avro:order.avsc")]

    def transform(self, key: Any, value: Any) -> Any:
        self.context.get_store("orders").put(key, value)
        return value | {"user": self.context.get_store("orders").get(key)["user"] + "!"}


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    with running() as made:
        yield made


def test_the_settings_of_an_application_name_the_registry(
    registry: SchemaRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of topics, stores, windows by session and suppressed tables; a serde's own registry and no other wins."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SCHEMA_REGISTRY_URL", "http://127.0.0.1:1")
    Path("order.avsc").write_text(ORDER)
    builder = StreamsBuilder()
    keys: Any = AvroSerde('"string"', subject="in-key")
    orders = builder.stream("in", key_serde=keys, value_serde=AvroSerde(ORDER)).process_values(Shouts)
    orders.to("out", key_serde="str", value_serde=AvroSerde(ORDER, registry="mock://own"))
    counts = orders.group_by_key().windowed_by(sessions("1s", grace="0s")).count("counts")
    counts.suppress("window_closes").to_stream(lambda window, count: str(count), with_key=True).to(
        "counts", value_serde="int"
    )
    closed = orders.group_by_key().windowed_by(sessions("1s", grace="0s"), emit="on_close").count("closed")
    closed.to_stream(lambda window, count: str(window.key), with_key=True).to("closed", value_serde="int")
    AvroSerde('"string"', registry=registry.url).bind("in", is_key=True).prepare(writes=True)
    settings: dict[str, Any] = {"schema_registry": {"url": registry.url, "max.retries": 0}}
    with TopologyTestDriver(builder, **settings) as driver:
        driver.pipe("in", "anna", {"user": "anna", "amount": 1}, 0)
        driver.pipe("in", "ben", {"user": "ben", "amount": 1}, 9_000)
        assert [order["user"] for order in driver.read_values("out")] == ["anna!", "ben!"]
        assert driver.read_pairs("counts") == [("1", 1)]
        assert driver.read_pairs("closed") == [("anna", 1)]
    assert "shop.Order" in registry.subjects and "out-value" not in registry.subjects


def test_an_error_of_the_registry_names_no_line_of_the_libraries_that_ask_it() -> None:
    serde: Any = AvroSerde(ORDER, registry={"url": "http://127.0.0.1:1", "max.retries": 0}).bind("in", is_key=False)
    with pytest.raises(SerdeUnavailableError) as caught:
        serde.prepare(writes=True)
    cause = caught.value.__cause__
    assert cause is not None and cause.__cause__ is not None and user_line(cause.__cause__) is None


class Framed(Serde[str]):
    """A serde of another package, which reads a setting."""

    frame = ""

    def configure(self, config: Mapping[str, Any]) -> Serde[str]:
        made = Framed()
        made.frame = str(SCHEMA_REGISTRY.of(config))
        return made

    def serialize(self, value: str) -> bytes:
        return f"{self.frame}/{value}".encode()

    def deserialize(self, data: bytes) -> str:
        return data.decode().removeprefix(f"{self.frame}/")


@pytest.mark.parametrize("serde", [Framed(), TimeWindowedSerde(Framed(), 60_000)])
def test_serdes_of_others_and_those_inside_of_serdes_get_the_settings(serde: Serde[Any]) -> None:
    key: Any = "k" if isinstance(serde, Framed) else Windowed("k", 0, 60_000)
    topology = Topology().add_source("in", "in", key_serde=serde).add_sink("out", "out", "in", key_serde=serde)
    with TopologyTestDriver(topology, schema_registry="here") as driver:
        driver.pipe("in", key, "v")
        assert driver.read_pairs("out") == [(key, "v")]
        assert driver.log.fetch(TopicPartition("out", 0), 0, 1, 100)[0].keys[0][:6] == b"here/k"  # type: ignore[index]


def test_kafkas_names_of_the_registry_and_its_user() -> None:
    config = {"schema.registry.url": "http://registry:8081", "basic.auth.user.info": "me:secret"}
    settings = Application("a", Topology().add_source("in", "in"), config).settings
    assert "secret" not in repr(settings)
    serde: Any = AvroSerde(ORDER).configure(settings.of_plugins)
    assert serde._settings == {"url": "http://registry:8081", "basic.auth.user.info": "me:secret"}
    with pytest.raises(ConfigError, match="setting 'schema_registry': expected the address of a schema registry, such"):
        Application("a", Topology().add_source("in", "in"), schema_registry={"basic.auth.user.info": "me:secret"})
