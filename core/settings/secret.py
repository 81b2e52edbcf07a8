"""Secrets among settings: which values they are, and mappings that do not show them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any

from ..errors import ConfigError, PluginError
from ..support.topic_config import client_text

HIDDEN = "********"
"""The text that is shown in place of a secret."""

_SECRET_NAME = re.compile(
    r"passw|passphrase|pwd|secret|token|jaas|credential|private|ssl\.?key|api\.?key|access\.?key|auth\.?user"
    r"|user\.?info|keytab|keystore|sasl\.oauthbearer\.config|authorization|cookie|(^|\.)(pin|pass|key|auth)$"
)
# A secret of a URL ends at the last @ of its word: people leave / and @ in it as they are, and half of all keys for S3
# have a /. These are looked for in words up to that @, where each search ends at once.
_USER = r"[^/\s@:]*(?::\S*)?(?=@)"
_USER_OF_URL = re.compile(rf"://{_USER}")
_USER_OF_PLACE = re.compile(
    rf"(?<=kafka:)[^/\s@:]\S*(?=@)|(?<=://){_USER}|(?<=\w:)(?=[^/\s@:])(?![\w+.-]{{1,20}}://){_USER}"
)
_SECRET_VALUE = re.compile(
    r"-----BEGIN|(?i:passw|secret|token|credential)\w*\s*[=:]|^\s*(?i:authorization:.*|bearer\s+\S+|basic\s+\S+)\s*$"
)
_QUOTED = re.compile(r"setting '[\w.-]+'|(?<!\w)('[^']+'|\"[^\"]+\")(?!\w)")
"""In an error: the name of a setting, or another text in quotes."""
_PARAMETER = re.compile(
    r"(?i:(?<=[?&;,])([\w.-]*(?:key|secret|passw|token|credential)[^=&;,]*=)[^&;,]*(?:,(?![\w.-]+=|\s)[^&;,\s]*)*)"
)


class Secret:
    """Marks a value of `clients` or `user` as one that is never shown, whatever its name is.

    >>> Secret("abc")
    Secret('********')
    """

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """Return the value."""
        return self._value

    def __repr__(self) -> str:
        return f"Secret({HIDDEN!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._value == other._value

    def __hash__(self) -> int:
        return hash(self._value)


def is_secret(name: str, value: object = "") -> bool:
    """Return whether a setting is a secret, judged by its name or value; in doubt it is.

    >>> is_secret("sasl.password"), is_secret("consumer.ssl.key.pem"), is_secret("security.protocol", "SASL_SSL")
    (True, True, False)
    """
    plain = re.sub(r"[_-]", ".", name.lower())
    return (
        isinstance(value, Secret)
        or _SECRET_NAME.search(plain) is not None
        or (isinstance(value, str) and (_SECRET_VALUE.search(value) is not None or _has_user(value)))
    )


def _has_user(text: str) -> bool:
    """Return whether a text has a URL with a user, whose password may be beside it."""
    return any(_USER_OF_URL.search(word[: word.rfind("@") + 1]) for word in text.split() if "@" in word)


def hide(name: str, value: Any) -> Any:
    """Return `value`, or stars for a secret, also inside mappings, lists and places.

    >>> hide("user", {"limit": 3, "api_key": "abc"}), hide("changelog", "directory:s3://me:abc@bucket/state")
    ({'limit': 3, 'api_key': '********'}, 'directory:s3://********@bucket/state')
    """
    if name in ("log", "changelog", "state_dir", "checkpoint_dir", "data_dir") and isinstance(value, str):
        return hide_in_places(value)
    if isinstance(value, ClientSettings):
        return {each: HIDDEN if value.is_secret(each) else value[each] for each in value}
    if is_secret(name, value):
        return HIDDEN
    if isinstance(value, Mapping):
        return {each: hide(str(each), inner) for each, inner in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {each: hide(each, inner) for each, inner in zip(value._fields, value, strict=True)}
    if isinstance(value, (list, tuple, set, frozenset)):
        if len(value) == 2 and isinstance(value, (list, tuple)) and isinstance(value[0], str) and is_secret(value[0]):
            return [hide(name, value[0]), HIDDEN]  # a header or an option by its name
        return [hide(name, inner) for inner in value]
    return _object_hidden(value)


def _object_hidden(value: Any) -> Any:
    """Return an object, or in place of one that may show a secret its type: "Service(********)".

    Arguments of a partial function have no names that could say that they are none.
    """
    if value is None or isinstance(value, (bool, int, float, str)) or hasattr(value, "__qualname__"):
        return value
    if isinstance(value, partial):
        function = value.func
        name = getattr(function, "__qualname__", type(function).__qualname__)
        return f"{getattr(function, '__module__', '')}:{name}({HIDDEN})"
    own = fields(value) if is_dataclass(value) else ()
    if any(is_secret(each.name, getattr(value, each.name, None)) for each in own) or is_secret("", repr(value)):
        return f"{type(value).__qualname__}({HIDDEN})"
    return value


@contextmanager
def hidden_in_errors(secret: str) -> Iterator[None]:
    """Put stars in place of a secret, as `repr` has it, into errors of the block about settings; "" hides nothing.

    So it is with a part of it that an error names in quotes, such as what is before or behind a colon.
    """
    try:
        yield
    except (ConfigError, PluginError) as error:
        bare = secret.strip("'\"")
        if len(bare) < 3:
            raise
        text = _QUOTED.sub(lambda found: _part_hidden(found, bare), str(error).replace(bare, HIDDEN))
        if text == str(error):
            raise
        raise type(error)(text) from None


def _part_hidden(found: re.Match[str], secret: str) -> str:
    """Return a text in quotes, or stars if it is a part of a secret: whole words of it."""
    if found[1] is None:
        return found[0]
    part = found[1][1:-1]
    is_part = len(part) > 2 and re.search(rf"(?<![^\W_]){re.escape(part)}(?![^\W_])", secret) is not None
    return f"'{HIDDEN}'" if is_part else found[0]


def hide_in_places(text: str) -> str:
    """Return a text, such as an error of a library, with stars in place of the secrets of the URLs in it.

    >>> hide_in_places("no such bucket: s3://me:abc@bucket/state?region=x&secret_key=abc&sasl.password=abc")
    'no such bucket: s3://********@bucket/state?region=x&secret_key=********&sasl.password=********'
    >>> hide_in_places("directory:s3://me:a/b@c@bucket/state"), hide_in_places("kafka:me:a/b@host:9092")
    ('directory:s3://********@bucket/state', 'kafka:********@host:9092')
    """
    words = re.split(r"(\s+)", text) if "@" in text else [text]
    for number, word in enumerate(words):
        before, at, behind = word.rpartition("@")
        words[number] = _USER_OF_PLACE.sub(HIDDEN, before + at) + behind
    return _PARAMETER.sub(lambda found: found[1] + HIDDEN, "".join(words))


class SettingsByName(dict[str, Any]):
    """Settings by name, as plain values; its `repr` shows no secret, because users put it into errors and log lines.

    The same holds for a mapping among them, such as `user`; a single value is returned as it is. Settings named in
    `marked` are secrets.
    """

    def __init__(self, given: Mapping[str, Any], marked: Collection[str] = ()) -> None:
        super().__init__({name: SettingsByName(each) if type(each) is dict else each for name, each in given.items()})
        self._marked = marked

    def __repr__(self) -> str:
        return repr({name: HIDDEN if name in self._marked else hide(name, value) for name, value in self.items()})


class ClientSettings(Mapping[str, str]):
    """Settings of the log's clients by their own names; shows no secret. Values are text, as clients want it.

    >>> ClientSettings({"sasl.username": "me", "sasl.password": "abc", "consumer.fetch.min.bytes": 1})
    {'sasl.username': 'me', 'sasl.password': '********', 'consumer.fetch.min.bytes': '1'}
    """

    def __init__(self, given: Mapping[str, Any]) -> None:
        """Take settings. Raises ConfigError for a name or a value that is no text, number or boolean."""
        if not isinstance(given, Mapping):
            raise ConfigError(
                f"setting 'clients': expected a mapping of client settings, found a {type(given).__name__}"
            )
        self._marked: frozenset[str] = (
            given._marked
            if isinstance(given, ClientSettings)
            else frozenset(name for name, value in given.items() if isinstance(value, Secret))
        )
        self._values = {name: _text(name, value) for name, value in given.items()}

    def is_secret(self, name: str) -> bool:
        """Return whether the value of a name must not be shown."""
        return name in self._marked or is_secret(name, self._values[name])

    def __getitem__(self, name: str) -> str:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return repr(hide("clients", self))

    def scrub(self, text: str) -> str:
        """Return `text`, which others wrote, without any of the secret values."""
        for name in self:
            if self.is_secret(name) and len(self._values[name]) > 2:
                text = text.replace(self._values[name], HIDDEN)
        return text

    def marked(self) -> dict[str, str | Secret]:
        """Return names and values; a value that was given as a Secret is one again."""
        return {name: Secret(value) if name in self._marked else value for name, value in self._values.items()}


def _text(name: Any, value: Any) -> str:
    revealed = value.reveal() if isinstance(value, Secret) else value
    return client_text("setting 'clients'", name, revealed, "security.protocol")
