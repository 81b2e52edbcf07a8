"""Messages of errors: the place and cause of a failure, and advice in terms of the verbs used."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..errors import PenstockError
from ..processor import Failure, Processor, ValueTransformer
from ..record import Record, RecordMetadata
from ..store import StateStore
from ..support.names import did_you_mean
from ..support.user_line import at_user_line, user_line


@dataclass(frozen=True)
class Advice:
    """The parts of messages that name verbs. In templates `{store}` and `{node}` are names in quotes.

    `first_step`: of an empty program. `declare`, `name_store`: for a store that is not declared, or that nobody uses.
    `connect`, `declare_for`: for a node that asks for a store. `repartition`: for topics with other numbers of
    partitions. `write`: how records get into a topic. `timers`: for a node whose processor a function makes.
    """

    first_step: str
    declare: str
    name_store: str
    connect: str
    declare_for: str
    repartition: str
    write: str
    timers: str


OF_TOPOLOGY = Advice(
    first_step="add_source is the first step",
    declare="declare it with add_store",
    name_store="name it in add_processor(..., stores=[{store}]) or in connect(PROCESSOR, {store})",
    connect="connect it: topology.connect({node}, {store}), or add_processor(..., stores=[{store}])",
    declare_for="Declare it with topology.add_store(key_value_store({store}), {node})",
    repartition="put add_repartition between source and processor",
    write="add_sink",
    timers="write add_processor({node}, ..., timers=True)",
)
"""For programs that are written as a Topology."""


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


def describe_place(failure: Failure, application_id: str, doing: str = "") -> str:
    """Return which node and which record failed."""
    where = (
        "for a record that had waited"
        if failure.had_waited
        else "in a punctuator"
        if failure.topic is None
        else f"at topic {failure.topic!r} partition {failure.partition} offset {failure.offset}"
    )
    return f"application {application_id!r}, task {failure.task_id}, node {failure.node!r}{doing}, {where}"


def describe_error(error: BaseException) -> str:
    """Return the message of an error with its notes (PEP 678) and the user's line; it may quote the record."""
    message = str(error) if isinstance(error, PenstockError) else f"{type(error).__name__}: {error}"
    advice = hint(error)
    return "; ".join((message, *getattr(error, "__notes__", ()), *([advice] if advice else ()))) + at_user_line(error)


def describe_cause(error: BaseException) -> str:
    """Return the types of an error and of its first cause, and the line of the user's code that it came from.

    Not its message: that quotes what the record contains, as of `int("5 EUR")`.
    """
    kinds = type(error).__name__
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    if type(cause) is not type(error):
        kinds += f" caused by {type(cause).__name__}"
    place = user_line(error)
    return kinds + (f" ({place}, in {place.function})" if place else "")


def no_context(error: BaseException) -> str | None:
    """Return the message for a processor without a context; None for any other error."""
    if not isinstance(error, AttributeError) or error.name != "context":
        return None
    if not isinstance(error.obj, (Processor, ValueTransformer)):
        return None
    name = type(error.obj).__name__
    return (
        f"{name} has no context, because its init, or that of a wrapper around it, does not call the one of its base "
        f"class: begin init of {name} with super().init(context)"
    )
