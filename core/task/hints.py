"""Hints: what a message adds to an error of Python's own, where a processor used something as it is elsewhere.

They are looked up after a failure, so what is used correctly costs nothing more.
"""

from __future__ import annotations

import re

from ..processor import Processor, ValueTransformer
from ..record import Record, RecordMetadata
from ..store import StateStore
from ..support.names import did_you_mean

_OF_PROCESSORS = {
    **dict.fromkeys(("forward", "send"), "does not forward: return the new value from transform"),
    **dict.fromkeys(("timer", "cancel_timer", "timers"), "has no timers"),
    "set_flush_listener": "has no flush listener",
}
"""Methods that the context of a Processor has, and that of a ValueTransformer lacks."""

_METADATA = "context.record_metadata.{name} (None in a punctuator and in init)"
_OF_CONTEXTS = {
    **dict.fromkeys(("get_state_store", "state_store", "store"), "context.get_store(NAME)"),
    **dict.fromkeys(("stream_time", "current_stream_time"), "context.current_stream_time_ms()"),
    **dict.fromkeys(("system_time", "current_system_time", "now", "time"), "context.current_system_time_ms()"),
    **{name: f"record.{name}" for name in ("key", "value", "timestamp", "headers")},
    **{name: _METADATA.format(name=name) for name in RecordMetadata._fields},
    "app_configs": "context.config",
}
_OF_STORES = {
    **dict.fromkeys(("set", "add", "update"), "put(key, value)"),
    **dict.fromkeys(("remove", "pop"), "delete(key)"),
    **dict.fromkeys(("items", "keys", "values"), "all(), which gives (key, value) pairs"),
    "setdefault": "put_if_absent(key, value)",
}
_NO_DICT = "a store is no dict: it has get(key), put(key, value), delete(key), all() and range(first, last)"
_AS_DICT = re.compile(
    r"'\w*Store\w*' object (is not subscriptable|does not support item|is not iterable)"
    r"|argument of type '\w*Store\w*' is not iterable|object of type '\w*Store\w*' has no len"
)
FORWARD = (
    "forward takes a Record, for instance record.with_value(...), and the name of one child: forward(record, to=CHILD)"
)


def hint(error: BaseException) -> str:
    """Return the code to write in place of the code that raised `error`; "" if none is known."""
    if isinstance(error, AttributeError):
        return _of_attribute(error)
    text = str(error)
    if isinstance(error, TypeError) and text.startswith("forward() "):
        return FORWARD
    return _NO_DICT if isinstance(error, TypeError) and _AS_DICT.match(text) else ""


def _of_attribute(error: AttributeError) -> str:
    owner, name = error.obj, str(error.name)
    if str(error) == "can't set attribute":
        return "a Record is immutable: record.with_value(...), with_key, with_timestamp and with_headers return another"
    if owner is None:
        return "context.record_metadata is None in init and in a punctuator" if name in RecordMetadata._fields else ""
    if isinstance(owner, (Processor, ValueTransformer)) and name == "context":
        return "a constructor has no context: look up stores in init(self, context), after super().init(context)"
    snake = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
    if isinstance(owner, StateStore):
        known, verbs = _OF_STORES.get(snake), _verbs_of(owner)
        return f"write {known}" if known else did_you_mean(snake, verbs) or f"it has {', '.join(verbs)}"
    if isinstance(owner, Record):
        return did_you_mean(snake, _public(owner))
    if hasattr(owner, "record_metadata"):
        if snake in _OF_PROCESSORS:
            return f"a ValueTransformer {_OF_PROCESSORS[snake]}; derive the class from Processor for that"
        if snake != name and hasattr(owner, snake):
            return f"write context.{snake}{'()' if callable(getattr(owner, snake)) else ''}"
        known = _OF_CONTEXTS.get(snake)
        return f"write {known}" if known else did_you_mean(snake, _public(owner))
    return ""


def _verbs_of(store: StateStore) -> list[str]:
    """Return the methods of a store that are for processors."""
    kind = next((each for each in type(store).__mro__ if ".store.kinds." in each.__module__), type(store))
    return [each for each in _public(kind) if not hasattr(StateStore, each)]


def _public(owner: object) -> list[str]:
    return [each for each in dir(owner) if not each.startswith("_")]
