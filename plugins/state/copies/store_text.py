"""StoreText: the text form of a store's keys and entries, by the store's own serdes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from penstock import Application, BytesSerde, ConfigError, Serde, SerdeError, StoreBuilder, StrSerde
from penstock.plugins.serdes.json_text import headers_to_json
from penstock.support.text_form import NoTextForm, to_json

from .contents import Entry, reading_serdes


class StoreText:
    """Keys and entries of a store as JSON data; one thread at a time uses it, and its serdes are its own."""

    def __init__(self, application: Application, store: StoreBuilder) -> None:
        self._name = store.name
        serdes = reading_serdes(application, store)
        self._serdes = {name.removesuffix("_serde"): serde for name, serde in serdes.items()}

    @property
    def key_serde(self) -> Serde[Any]:
        """The serde of the keys. Raises ConfigError for a store whose kind has none."""
        if "key" not in self._serdes:
            raise ConfigError(f"store {self._name!r} is of a kind without a key serde: its keys cannot be read here")
        return self._serdes["key"]

    def key_of_json(self, data: Any) -> Any:
        """Return the key that has this text form. Raises ConfigError if it fits not."""
        return self._key(data, self.key_serde.from_json)

    def key_of_text(self, text: str) -> Any:
        """Return the key that a text means: itself for the serdes str and bytes, and else JSON, in the text form.

        Text that is not JSON is taken for a string. Bytes that are no text have the tag `!bytes`. Raises ConfigError
        for text that does not fit the serde.
        """
        return self._key(text, self._of_text)

    def _of_text(self, text: str) -> Any:
        serde = self.key_serde
        if isinstance(serde, StrSerde):
            return serde.deserialize(text.encode())
        data = _json_or_text(text)
        if isinstance(serde, BytesSerde) and not (isinstance(data, dict) and data.keys() == {"!bytes"}):
            return serde.deserialize(text.encode())
        return serde.from_json(data)

    def _key(self, given: Any, read: Callable[[Any], Any]) -> Any:
        kind = type(self.key_serde).__name__
        try:
            if (key := read(given)) is not None:
                return key
            raise SerdeError("no key is null")
        except Exception as error:  # a serde of another package may raise anything
            shown = repr(given)
            shown = shown if len(shown) <= 100 else shown[:100] + "..."
            raise ConfigError(
                f"key {shown} does not fit the key serde {kind} of store {self._name!r}: {error}"
            ) from error

    def entry(self, entry: Entry) -> dict[str, Any]:
        """Return an entry as JSON data. Raises NoTextForm."""
        return {name: self._part(name, value) for name, value in entry.items()}

    def columns(self, columns: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
        """Return the columns of entries as JSON data. Raises NoTextForm."""
        return {name: [self._part(name, value) for value in column] for name, column in columns.items()}

    def _part(self, name: str, value: Any) -> Any:
        if name not in ("key", "value"):
            return headers_to_json(value) if name == "headers" else value
        if value is None:
            return None
        try:
            return self._serdes[name].to_json(value) if name in self._serdes else to_json(value)
        except NoTextForm as error:
            raise NoTextForm(f"store {self._name!r}, {name}: {error}") from error


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_no_json)
    except (ValueError, RecursionError):
        return text


def _no_json(constant: str) -> None:
    raise ValueError(f"JSON has no {constant}")
