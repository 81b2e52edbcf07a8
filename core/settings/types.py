"""Types of settings: which values a setting accepts, and what they are as text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from os import PathLike
from typing import Any, Generic, TypeVar

from ..clock import Duration, duration_ms
from ..errors import ConfigError, TopologyError
from ..support.callbacks import check_called_with

T = TypeVar("T")

LoadFunction = Callable[[str], Any]
"""Returns the function that MODULE:ATTR names."""


class SettingType(Generic[T]):
    """The values of a setting.

    By default any value. `expected` names them in messages, for instance "a whole number above 0". `accepts` is asked
    for the value as `kept` returns it, which may spell it in one way. `read` returns the value that a text stands for.
    """

    def __init__(
        self,
        expected: str = "",
        accepts: Callable[[Any], bool] = lambda value: True,
        read: Callable[[str], Any] = str,
        kept: Callable[[Any], Any] = lambda value: value,
    ) -> None:
        self._expected = expected
        self._accepts = accepts
        self._read = read
        self._kept = kept

    def check(self, setting: str, value: Any) -> T:
        """Return the value as it is kept. Raises ConfigError that begins with `setting`, such as "setting 'log'"."""
        kept: T = self._kept(value)
        if not self._accepts(kept):
            raise ConfigError(f"{setting}: expected {self._expected}, found {value!r}")
        return kept

    def of_text(self, setting: str, text: str, load_function: LoadFunction) -> Any:
        """Return the value that a text in a file, a variable or an option stands for; it is checked afterwards."""
        try:
            return self._read(text)
        except ValueError:
            raise ConfigError(f"{setting}: expected {self._expected}, found {text!r}") from None


def whole_number(least: int = 1, most: int | None = None, expected: str = "a whole number above 0") -> SettingType[int]:
    """Return the type of whole numbers from `least` to `most`."""

    def accepts(value: Any) -> bool:
        is_number = isinstance(value, int) and not isinstance(value, bool)
        return is_number and value >= least and (most is None or value <= most)

    return SettingType(expected, accepts, lambda text: int(text.replace("_", "")))


def one_of(*choices: str) -> SettingType[str]:
    """Return the type of some texts."""
    return SettingType(" or ".join(map(repr, choices)), lambda value: value in choices)


def text(expected: str = "text") -> SettingType[str]:
    """Return the type of texts that are not empty."""
    return SettingType(expected, lambda value: isinstance(value, str) and bool(value))


class _Optional(SettingType[T | None]):
    def __init__(self, given: SettingType[T]) -> None:
        self._given = given

    def check(self, setting: str, value: Any) -> T | None:
        return None if value is None else self._given.check(setting, value)

    def of_text(self, setting: str, text: str, load_function: LoadFunction) -> Any:
        return None if text.lower() in ("none", "") else self._given.of_text(setting, text, load_function)


def optional(given: SettingType[T]) -> SettingType[T | None]:
    """Return the type of these values and None, which is "none" as text."""
    return _Optional(given)


class _Length(SettingType[Duration]):
    def __init__(self) -> None:
        super().__init__("a length of time of 0 or more", lambda value: duration_ms(value) >= 0)

    def check(self, setting: str, value: Any) -> Duration:
        duration_ms(value, setting)
        return super().check(setting, value)


class Function(SettingType[Any]):
    """Functions that are called with these arguments; `ours` can be named without their module."""

    def __init__(self, arguments: Sequence[str], ours: Sequence[Callable[..., Any]] = ()) -> None:
        self._arguments = arguments
        self._ours = {each.__name__: each for each in ours}

    def check(self, setting: str, value: Any) -> Any:
        """Return the function. Raises ConfigError for one that cannot be called so."""
        if not callable(value):
            raise ConfigError(f"{setting}: expected a function, found {value!r}")
        try:
            check_called_with(setting, "it", value, self._arguments)
        except TopologyError as error:
            raise ConfigError(str(error)) from error
        return value

    def of_text(self, setting: str, text: str, load_function: LoadFunction) -> Any:
        """Return one of ours by its name, or any by MODULE:ATTR."""
        if text in self._ours:
            return self._ours[text]
        if ":" in text:
            return load_function(text)
        named = f"one of {', '.join(self._ours)}, or " if self._ours else ""
        raise ConfigError(f"{setting}: expected {named}MODULE:ATTR of a function of yours, found {text!r}")


DURATION: SettingType[Duration] = _Length()
"""A length of time: a timedelta, or text such as "10s"."""
FLAG: SettingType[bool] = SettingType(
    "True or False",
    lambda value: isinstance(value, bool),
    lambda text: {"true": True, "false": False}.get(text.lower(), text),
)
DIRECTORY: SettingType[str] = SettingType("a directory's path", lambda value: isinstance(value, (str, PathLike)))
PLACE: SettingType[str] = SettingType("NAME:LOCATION", lambda value: isinstance(value, str) and ":" in value)
"""The name of an installed plugin, and where it keeps things."""
