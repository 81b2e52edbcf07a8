"""The tests that settings of plugins and our vocabularies must pass."""

from __future__ import annotations

import math
import pickle
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from penstock import ConfigError, Setting, Settings
from penstock.settings.names import EXTRA, Key, NoCounterpartError, Vocabulary

_NAME = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)+")


class SettingContract:
    """The contract of a plugin's setting, as tests."""

    setting: ClassVar[Setting[Any]]
    accepted: ClassVar[Mapping[str, Any]]
    """Texts, as a file or a variable gives them, and the value that each is."""
    refused: ClassVar[Sequence[Any]] = ()
    """Texts and values that are not accepted, beside an `object()`."""

    def test_its_declaration(self) -> None:
        """A name after the plugin's and a dot, a sentence, and a default that it accepts and that needs no package."""
        setting = self.setting
        assert _NAME.fullmatch(setting.name), f"a setting's name is PLUGIN.NAME in small letters: {setting.name!r}"
        text = setting.text.strip()
        assert text[:1].isupper() and text.endswith("."), (
            f"`text` is a sentence that says what it does: {setting.text!r}"
        )
        kept = self._checked(setting.default)
        assert kept == setting.default, f"the default {setting.default!r} is kept as {kept!r}: declare it in that form"
        setting.needs(setting.default)
        found = setting.of({})
        assert found == setting.default, f"where nothing is given, it is its default, and was {found!r}"

    def test_what_it_accepts(self) -> None:
        """A text and the value that it stands for are one, checking again changes nothing, and the value travels."""
        for text, value in self.accepted.items():
            found = self._checked(self._of_text(text))
            assert type(found) is type(value) and found == value, f"the text {text!r} is {found!r}, expected {value!r}"
            for given in (value, found):
                again = self._checked(given)
                assert type(again) is type(value) and again == value, (
                    f"the value {given!r} is kept as {again!r}, and its text as {value!r}: each value has one form"
                )
            self._check_close_values(value)
            read = self.setting.of({self.setting.name: found})
            assert read == value, f"read where {value!r} was given, it is {read!r}"
            try:
                sent = pickle.loads(pickle.dumps(found))
            except Exception as error:
                raise AssertionError(
                    f"a value is sent to other processes: {found!r} cannot be pickled: {error!r}"
                ) from error
            assert sent == found, f"{found!r} is {sent!r} after pickling"

    def test_what_it_refuses(self) -> None:
        """With a ConfigError that begins with the setting's name and shows the value."""
        for value in (*self.refused, object()):
            try:
                found = self._check(self._of_text(value) if isinstance(value, str) else value)
            except ConfigError as error:
                message = str(error)
                assert message.startswith("setting 'the one'"), (
                    f"the error for {value!r} begins with what `check` is told to call the setting: {message}"
                )
                shown = str(value) if isinstance(value, str) else repr(value)
                assert shown[:20] in message, f"the error for {value!r} shows the value: {message}"
            except Exception as error:
                raise AssertionError(f"{value!r} must be refused with a ConfigError, and raised {error!r}") from error
            else:
                raise AssertionError(f"{value!r} must be refused, and is kept as {found!r}")

    def _check_close_values(self, value: Any) -> None:
        """Check numbers beside an accepted one, which are other values, and those equal to it, which have its form."""
        if type(value) not in (bool, int, float) or not math.isfinite(value):
            return
        for given in (value + 0.5, int(value), float(value), bool(value)):
            try:
                kept = self._check(given)
            except ConfigError:
                continue
            is_one = type(kept) is type(value) and kept == value
            assert is_one or given != value, (
                f"the value {given!r} is kept as {kept!r}, and {value!r}, which is equal to it, as {value!r}: refuse "
                "one of them, or give both one form"
            )
            assert not is_one or given == value, (
                f"the value {given!r} is kept as {kept!r}, which is another number: refuse it"
            )

    def _of_text(self, text: str) -> Any:
        return self.setting.values.of_text("setting 'the one'", text, _load)

    def _check(self, value: Any) -> Any:
        return self.setting.values.check("setting 'the one'", value)

    def _checked(self, value: Any) -> Any:
        try:
            return self._check(value)
        except ConfigError as error:
            raise AssertionError(f"{value!r} must be accepted, and was refused: {error}") from error


class VocabularyContract:
    """The contract of a vocabulary of settings, as tests."""

    vocabulary: ClassVar[Vocabulary]
    translated: ClassVar[Mapping[tuple[str, Any], tuple[Key, Any] | None]] = {}
    """By name and value: our setting and its value, or None where it is as the name says anyway."""

    def test_it_knows_its_names(self) -> None:
        """Each once, with and without a prefix, and no others."""
        names = list(self.vocabulary.names())
        assert names and len(names) == len(set(names)), f"`names` has each name once: {sorted(names)[:5]}..."
        assert self.vocabulary.owner.strip(), "`owner` says whose names they are"
        for name in names:
            for prefix in ("", *self.vocabulary.prefixes):
                assert self.vocabulary.knows(prefix + name), (
                    f"`names` and `prefixes` have {prefix + name!r}: it is known"
                )
        for name in ("", "no such name", "of.nobody.knows"):
            assert not self.vocabulary.knows(name), f"{name!r} is of no vocabulary, and is not known"

    def test_each_name_is_translated_or_explained(self) -> None:
        """To a setting that there is, or by a ConfigError that says what to do; no value raises anything else."""
        ours = {*Settings.names(), *EXTRA}
        for name in self.vocabulary.names():
            for value in ("", "1", "x", "true", 1, True, None):
                try:
                    found = self.vocabulary.translate(name, value)
                except ConfigError as error:
                    _check_message(name, error)
                except Exception as error:
                    raise AssertionError(
                        f"{name!r} = {value!r} must raise ConfigError, and raised {error!r}"
                    ) from error
                else:
                    key = None if found is None else found[0]
                    is_ours = key in ours or (
                        isinstance(key, tuple) and key[0] in ("clients", "user") and len(key) == 2
                    )
                    assert key is None or is_ours, f"{name!r} is translated to {key!r}, which is no setting"

    def test_translations(self) -> None:
        """Those that the suite names."""
        for (name, value), expected in self.translated.items():
            found = self.vocabulary.translate(name, value)
            assert found == expected, f"{name!r} = {value!r} is translated to {found!r}, expected {expected!r}"


def _check_message(name: str, error: ConfigError) -> None:
    assert str(error).strip(), f"the error for {name!r} says what is expected"
    explains = not isinstance(error, NoCounterpartError) or name in str(error)
    assert explains, f"the error for {name!r} has the name: {error}"


def _load(place: str) -> Any:
    raise ConfigError(f"setting 'the one': {place!r} is in no module of the suite")
