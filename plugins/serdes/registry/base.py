"""RegistrySerde: the base of serdes of all formats with a registry."""

from __future__ import annotations

import json
import reprlib
from abc import abstractmethod
from collections.abc import Callable, Mapping
from copy import copy
from pathlib import Path
from typing import Any, ClassVar, Literal, TypedDict, TypeVar

from confluent_kafka.serialization import MessageField, SerializationContext

from penstock import ConfigError, PenstockError, Serde, SerdeError
from penstock.support.packages import needed

with needed("a schema registry", "avro"):
    from confluent_kafka.schema_registry import Schema

from .client import MockRegistryClient, RegistryClient, client_of, client_settings, of_the_environment
from .settings import SCHEMA_REGISTRY, SCHEMA_REGISTRY_USER_INFO

T = TypeVar("T")
Strategy = Literal["topic", "record", "topic-record"]
_STRATEGIES = ("topic", "record", "topic-record")
_STORE = "a store"


class RegistryOptions(TypedDict, total=False):
    """The options of every serde of a registry; see RegistrySerde."""

    registry: str | Mapping[str, Any] | None
    subject: str | None
    subject_strategy: Strategy
    register: bool


class RegistrySerde(Serde[T]):
    """A serde that writes the id of a schema before each value, and reads a value by the schema that wrote it.

    `registry`: its address, or settings of Confluent's client (None: the setting `schema_registry` of the application,
    or SCHEMA_REGISTRY_URL of the environment).
    `subject`: the subject of the schema; without one, `subject_strategy` says how it follows from the topic and the
    record's name. A store has no topic: its subject is the name of the record. `register`: whether a schema that the
    subject does not have is registered.
    """

    name: ClassVar[str]
    extra: ClassVar[str]

    def __init__(
        self,
        schema: str | None,
        *,
        registry: str | Mapping[str, Any] | None = None,
        subject: str | None = None,
        subject_strategy: Strategy = "topic",
        register: bool = True,
    ) -> None:
        if subject_strategy not in _STRATEGIES:
            raise ConfigError(
                f"serde {self.name!r}: subject_strategy: expected one of {', '.join(_STRATEGIES)}, found "
                f"{subject_strategy!r}"
            )
        self._is_configurable = registry is None
        # The environment counts where the program starts: hosts of tasks may have another one.
        self._settings = of_the_environment() if registry is None else client_settings(registry)
        self.schema = schema
        self._subject = subject
        self._strategy = subject_strategy
        self._register = register
        self._topic: str | None = None
        self._is_key = False
        self._made: tuple[Callable[..., bytes], Callable[..., Any], SerializationContext] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_made": None}

    def configure(self, config: Mapping[str, Any]) -> Serde[T]:
        found = client_settings(SCHEMA_REGISTRY.of(config), SCHEMA_REGISTRY_USER_INFO.of(config))
        if found is None or not self._is_configurable:
            return self
        made = copy(self)
        made._settings, made._made = found, None
        return made

    def bind(self, topic: str, *, is_key: bool) -> Serde[T]:
        made = copy(self)
        made._topic, made._is_key, made._made = topic, is_key, None
        return made

    def serialize(self, value: T) -> bytes:
        """Return the value behind the id of its schema. Raises SerdeError with the field that does not fit."""
        try:
            write, _, context = self._made or self._make()
            if value is None:
                raise ValueError("null has no bytes")
            return write(value, context)
        except PenstockError as error:
            raise type(error)(f"serde {self.name!r}: {error}") from error
        except Exception as error:
            raise SerdeError(
                f"serde {self.name!r}: cannot write {type(value).__name__} {reprlib.repr(value)}: {_said(error)}; give "
                "it what its schema declares"
            ) from error

    def deserialize(self, data: bytes) -> T:
        """Return the value, by the schema that it was written with."""
        try:
            _, read, context = self._made or self._make()
            value: T = read(data, context)
        except PenstockError as error:
            raise type(error)(f"serde {self.name!r}: {error}") from error
        except Exception as error:
            raise SerdeError(
                f"serde {self.name!r}: cannot read {len(data)} bytes, {data[:40]!r}: {_said(error)}; expected 0, "
                "4 bytes with the id of a schema, and the value; name the serde it was written with"
            ) from error
        if value is None:
            raise SerdeError(f"serde {self.name!r}: {data[:40]!r} is null; a value that is null has no bytes")
        return value

    def prepare(self, *, writes: bool) -> None:
        """Register the schema, or find it; where values are only read, compare it with the subject's newest one."""
        try:
            if writes:
                self._prepare_writing()
            elif self.schema is not None:
                self._prepare_reading()
        except PenstockError as error:
            raise type(error)(f"serde {self.name!r}: {error}") from error

    def check_keys(self) -> None:
        """Refuse to write keys by the newest schema: after its next version no row of before would be found."""
        if self.schema is None:
            subject = "its subject" if self._subject is None else f"subject {self._subject!r}"
            raise SerdeError(
                f"serde {self.name!r}: rows are found by the bytes of their keys, and without a schema of its own "
                f"these change with the next version of {subject}: give the serde the schema of the keys (a file or "
                "text), or take another serde for them, such as of(TYPE)"
            )

    def _prepare_reading(self) -> None:
        newest = self.client.latest(self.subject())
        if newest is not None and (found := self._differences(newest.schema)):
            raise SerdeError(
                f"its schema cannot read what version {newest.version} of subject {newest.subject!r} wrote: {found}"
            )

    def _prepare_writing(self) -> None:
        subject = self.subject()
        if self.schema is None:
            self.client.get_latest_version(subject)
            return
        newest = self.client.latest(subject)
        find = self.client.register_schema_full_response if self._register else self.client.lookup_schema
        try:
            find(subject, self._as_schema())
        except SerdeError as error:
            if newest is None or not (found := self._differences(newest.schema)):
                raise
            raise SerdeError(f"{error} (version {newest.version} against the serde's schema: {found})") from error

    @property
    def client(self) -> RegistryClient | MockRegistryClient:
        """The client of this process. Raises ConfigError if no registry is known."""
        if self._settings is None:
            raise ConfigError(
                "the address of the schema registry is not known: give registry='http://HOST:8081', the setting "
                "schema_registry, or the environment variable SCHEMA_REGISTRY_URL"
            )
        return client_of(self._settings)

    def subject(self, record: str | None = None) -> str:
        """Return the subject of the schema; `record` is the name of the record where the serde has no schema."""
        if self._subject is not None:
            return self._subject
        if self._topic is not None and self._strategy == "topic":
            return f"{self._topic}-{MessageField.KEY if self._is_key else MessageField.VALUE}"
        named = record if self.schema is None else self.record_name()
        if named is None:
            why = "a store has no topic" if self._topic is None else "the strategy needs the name of one"
            raise SerdeError(
                f"the subject of its schema is not known: the schema is no record, and {why}; give subject=..."
            )
        return f"{self._topic}-{named}" if self._strategy == "topic-record" and self._topic is not None else named

    @abstractmethod
    def record_name(self) -> str | None:
        """Return the full name of the record that the schema declares, if it is one."""

    @abstractmethod
    def _functions(
        self, writing: dict[str, Any], reading: dict[str, Any]
    ) -> tuple[Callable[..., bytes], Callable[..., Any]]:
        """Return Confluent's serializer and deserializer for the schema, with these settings."""

    @abstractmethod
    def _differences(self, written: Schema) -> str:
        """Return in words why the serde's schema cannot read what `written` wrote; "" if it can, or nobody knows."""

    @abstractmethod
    def _as_schema(self) -> Schema:
        """Return the schema as the registry takes it."""

    def _subject_to_read(self, context: object, record: str | None) -> str | None:
        """Return the subject as far as it is known: a value names its schema by the id."""
        try:
            return self.subject(record)
        except SerdeError:
            return None

    def _make(self) -> tuple[Callable[..., bytes], Callable[..., Any], SerializationContext]:
        field = MessageField.KEY if self._is_key else MessageField.VALUE
        conf = {
            "auto.register.schemas": self._register and self.schema is not None,
            "use.latest.version": self.schema is None,
            "subject.name.strategy": lambda context, record: self.subject(record),
        }
        reading = {"subject.name.strategy": self._subject_to_read}
        made = (*self._functions(conf, reading), SerializationContext(self._topic or _STORE, field))
        self._made = made
        return made


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def declared_schema(
    given: str | Path, check: Callable[[str, Any], object], *, serde: str, suffix: str, kind: str, expected: str
) -> Any:
    """Return the schema, as JSON, that a text or a file whose name ends in `suffix` declares. Raises ConfigError.

    `check` gets the text and what it declares, and raises for what is no schema. Messages name `kind` and `expected`.
    """
    text, where = str(given), f"serde {serde!r}: the schema"
    if isinstance(given, Path) or text.endswith(suffix):
        where = f"serde {serde!r}: file {text!r}"
        try:
            text = Path(given).read_text()
        except OSError as error:
            raise ConfigError(f"{where} cannot be read: {error.strerror}; expected {expected}") from error
    try:
        declared = json.loads(text)
        check(text, declared)
    except Exception as error:
        raise ConfigError(f"{where} is no {kind}: {type(error).__name__}: {error}") from error
    return declared
