"""Types of settings: accepted values, and their forms as text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from os import PathLike
from typing import Any, Generic, TypeVar

from ..clock import Duration, duration_ms
from ..errors import ConfigError, TopologyError
from ..support.callbacks import check_called_with

T = TypeVar("T")

LoadFunction = Callable[[str], Any]
"""Returns the function that MODULE:ATTR names."""
Check = Callable[[str, Any], T]
"""Checks a value and returns it in the form that is stored. Raises ConfigError that begins with the first argument,
such as "setting 'log'".
"""


class SettingType(Generic[T]):
    """The values of a setting.

    `check` gets the setting's name for messages, and a value. `of_text` gets the same name, the text of a file,
    variable or option, and a function that loads plugins; it returns the value to check.
    """

    def __init__(
        self, check: Check[T], of_text: Callable[[str, str, LoadFunction], Any] = lambda setting, text, load: text
    ) -> None:
        self.check = check
        self.of_text = of_text


def expecting(
    expected: str, accepts: Callable[[Any], bool], kept: Callable[[Any], Any] = lambda value: value
) -> Check[Any]:
    """Return a check; `expected` describes the accepted values. `kept` converts each to the form that is stored."""

    def check(setting: str, value: Any) -> Any:
        if not accepts(kept(value)):
            raise ConfigError(f"{setting}: expected {expected}, found {value!r}")
        return kept(value)

    return check


def whole_number(
    least: int = 1, most: float = inf, expected: str = "a whole number above 0", besides: Sequence[int] = ()
) -> SettingType[int]:
    """Return the type of whole numbers from `least` to `most`, and of the additional values `besides`."""

    def accepts(value: Any) -> bool:
        is_number = isinstance(value, int) and not isinstance(value, bool)
        return is_number and (least <= value <= most or value in besides)

    def of_text(setting: str, text: str, load: LoadFunction) -> int:
        try:
            return int(text)
        except ValueError:
            raise ConfigError(f"{setting}: expected {expected}, found {text!r}") from None

    return SettingType(expecting(expected, accepts), of_text)


def one_of(*choices: str) -> SettingType[str]:
    """Return the type of some texts."""
    return SettingType(expecting(" or ".join(map(repr, choices)), lambda value: value in choices))


def text(expected: str = "text") -> SettingType[str]:
    """Return the type of texts that are not empty."""
    return SettingType(expecting(expected, lambda value: isinstance(value, str) and bool(value)))


def optional(given: SettingType[T]) -> SettingType[T | None]:
    """Return the type of these values and None, which is "none" as text."""
    return SettingType(
        lambda setting, value: None if value is None else given.check(setting, value),
        lambda setting, text, load: None if text.lower() in ("none", "") else given.of_text(setting, text, load),
    )


def function(arguments: Sequence[str], ours: Sequence[Callable[..., Any]] = ()) -> SettingType[Any]:
    """Return the type of functions that are called with these arguments; `ours` are named without their module."""
    names = {each.__name__: each for each in ours}

    def check(setting: str, value: Any) -> Any:
        if not callable(value):
            raise ConfigError(f"{setting}: expected a function, found {value!r}")
        try:
            check_called_with(setting, "it", value, arguments)
        except TopologyError as error:
            raise ConfigError(str(error)) from error
        return value

    def of_text(setting: str, text: str, load: LoadFunction) -> Any:
        if text in names or ":" in text:
            return names[text] if text in names else load(text)
        named = f"one of {', '.join(names)}, or " if names else ""
        raise ConfigError(f"{setting}: expected {named}MODULE:ATTR of a function of yours, found {text!r}")

    return SettingType(check, of_text)


def _length(setting: str, value: Any) -> Duration:
    duration_ms(value, setting)
    length: Duration = value
    return length


DURATION = SettingType(_length)
"""A length of time: a timedelta, or text such as "10s"."""
FLAG: SettingType[bool] = SettingType(
    expecting("True or False", lambda value: isinstance(value, bool)),
    lambda setting, text, load: {"true": True, "false": False}.get(text.lower(), text),
)
DIRECTORY: SettingType[str] = SettingType(
    expecting("a directory's path", lambda value: isinstance(value, (str, PathLike)))
)
PLACE: SettingType[str] = SettingType(expecting("NAME:LOCATION", lambda value: isinstance(value, str) and ":" in value))
"""The name of an installed plugin, and where it keeps things."""
