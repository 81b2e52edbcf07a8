"""Messages about a failure: where it happened, its cause, and what to change."""

from __future__ import annotations

from ..errors import PenstockError
from ..handlers import Failure
from ..processor import Processor, ValueTransformer
from ..support.user_line import at_user_line, user_line
from .hints import hint


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
