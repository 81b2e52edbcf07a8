"""Sources of settings besides the program: a TOML file, the environment, and NAME=VALUE texts."""

from __future__ import annotations

import json
import logging
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from ..errors import ConfigError
from .layers import Given, Layer
from .names import EXTRA, MAPPINGS, Key, flat, vocabularies
from .secret import Secret, hidden_in_errors, hide
from .settings import Settings
from .types import LoadFunction

PREFIX = "PENSTOCK_"
_log = logging.getLogger("penstock.settings")
DEFAULT_FILE = "penstock.toml"
"""Read when it is in the working directory and no other file is named."""

_OURS = re.compile(r"COMPILED|DEBUG|CONFIG|LOG_FORMAT|KAFKA_\w+")
_NOT_SETTINGS = re.compile(
    # Kubernetes and Docker set these in every container beside a service of that name.
    r"(\w+_)?(SERVICE_(HOST|PORT(_\w+)?)|PORT(_\d+_(TCP|UDP)(_\w+)?)?)"
)
_SERVICE_LINK = re.compile(r"(tcp|udp|sctp)://\S+:\d+")
_TABLE = re.compile(r"\s*\[\s*([^\[\]]+?)\s*\]")
_ENTRY = re.compile(r"\s*((?:[\w-]+|\"[^\"]*\"|'[^']*')(?:\s*\.\s*(?:[\w-]+|\"[^\"]*\"|'[^']*'))*)\s*=")


def layers(
    file: str | os.PathLike[str] | None = None,
    environment: Mapping[str, str] | None = None,
    options: Sequence[str] = (),
    load_function: LoadFunction | None = None,
) -> Layer:
    """Return the settings of NAME=VALUE texts over those of the environment over those of the file.

    `file`: None for the file of PENSTOCK_CONFIG, or else for `penstock.toml` in the working directory, if it exists.
    """
    environment = os.environ if environment is None else environment
    load = load_function or _load_function
    found = options_layer(options, load).over(environment_layer(environment, load))
    named = file or environment.get(f"{PREFIX}CONFIG")
    if named or Path(DEFAULT_FILE).is_file():
        found = found.over(file_layer(named or DEFAULT_FILE, load))
    return found


# -- a TOML file


def file_layer(path: str | os.PathLike[str], load_function: LoadFunction | None = None) -> Layer:
    """Return the settings in a TOML file: in its table `penstock`, or at its top level when there is none.

    Nested tables are written as dots in names. Raises ConfigError with the file, and the line if there is one.
    """
    path = Path(path).expanduser()
    try:
        text = path.read_text(encoding="utf-8")
        content = tomllib.loads(text)
    except OSError as error:
        raise ConfigError(f"configuration file {str(path)!r}: {error.strerror or error}") from None
    except ValueError as error:
        raise ConfigError(f"configuration file {str(path)!r} is no valid TOML: {error}") from None
    table = content.get("penstock")
    inside = isinstance(table, dict)
    lines = _lines(text)
    given = []
    for name, value in _flatten(table if isinstance(table, dict) else content):
        line = lines.get(f"penstock.{name}" if inside else name)
        origin = f"{path}, line {line}" if line else str(path)
        given.append((name, _secret_of(value, path.parent, origin), origin))
    load = load_function or _load_function
    return Layer.read(
        given, Settings.names(), lambda key, value: value if isinstance(key, tuple) else value_of(key, value, load)
    )


def _flatten(table: Mapping[str, Any], start: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        is_file = _is_reference(value) and not _is_named_file(start + name)
        is_table = isinstance(value, dict) and not (start or name).startswith("user.") and not is_file
        if is_table and name != "user":
            yield from _flatten(value, f"{start}{name}.")
        else:
            yield start + name, value


def _is_reference(value: Any) -> bool:
    return isinstance(value, dict) and set(value) == {"file"} and isinstance(value["file"], str)


def _is_named_file(name: str) -> bool:
    """Return whether NAME.file is a setting, and NAME is none: TOML reads `NAME.file = "PATH"` as a table."""
    known, bare = _names_of_vocabularies().values(), name.removeprefix("clients.")
    return f"{bare}.file" in known and bare not in known


def _secret_of(value: Any, directory: Path, origin: str) -> Any:
    """Return the secret in the file of a value `{file = "PATH"}`; any other value as it is."""
    return _read_secret(directory / Path(value["file"]).expanduser(), origin) if _is_reference(value) else value


def _read_secret(path: Path, origin: str) -> Secret:
    try:
        return Secret(path.read_text(encoding="utf-8").removesuffix("\n").removesuffix("\r"))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no text in UTF-8"
        raise ConfigError(f"{origin}: the file {str(path)!r} cannot be read: {reason}") from None


def _lines(text: str) -> dict[str, int]:
    """Return the line on which each dotted name is set, as far as that can be found without a parser."""
    found: dict[str, int] = {}
    table = ""
    for number, line in enumerate(text.splitlines(), 1):
        if match := _TABLE.match(line):
            table = _plain(match[1]) + "."
        elif match := _ENTRY.match(line):
            name = table + _plain(match[1])
            found.setdefault(name, number)
            if line[match.end() :].lstrip().startswith("{"):
                for inner in re.finditer(r"[{,]\s*([\w.-]+)\s*=", line[match.end() :]):
                    found.setdefault(f"{name}.{inner[1]}", number)
    return found


def _plain(name: str) -> str:
    return ".".join(part.strip().strip("\"'") for part in name.split("."))


# -- the environment


def environment_layer(environment: Mapping[str, str], load_function: LoadFunction | None = None) -> Layer:
    """Return the settings of variables PENSTOCK_…; one that ends in _FILE names the file that has the value.

    An empty variable sets nothing.

    >>> environment_layer({"PENSTOCK_CONSUMER_FETCH_MIN_BYTES": "10"}).values
    {('clients', 'consumer.fetch.min.bytes'): '10'}
    """
    given: list[Given] = []
    for variable, value in sorted(environment.items()):
        name = variable.removeprefix(PREFIX)
        if name == variable or not value or _OURS.fullmatch(name) or _is_of_service(variable, environment):
            continue
        spelled = flat(name)
        if _NOT_SETTINGS.fullmatch(name) and spelled not in _own_names() and spelled not in _names_of_vocabularies():
            continue
        found = _setting(spelled)
        # `user` may have a name of this form; no other mapping has.
        if name.endswith("_FILE") and (found is None or (_is_in_mapping(found) and not found.startswith("user."))):
            found = _setting(spelled.removesuffix("_file"))
            if found is not None:
                given.append((found, _read_secret(Path(value), variable), variable))
                continue
        given.append((found or name.lower(), value, variable))
    return _layer(given, load_function)


def _is_of_service(variable: str, environment: Mapping[str, str]) -> bool:
    """Return whether Kubernetes has set a variable for a Service, e.g. PENSTOCK_METRICS_PORT of `penstock-metrics`."""
    service = variable.removesuffix("_PORT")
    if service == variable or f"{service}_SERVICE_HOST" not in environment:
        return False
    if is_link := _SERVICE_LINK.fullmatch(environment[variable]) is not None:
        _log.info("%s is of a Service of Kubernetes, and no setting", variable)
    return is_link


def _setting(spelled: str) -> str | None:
    """Return the name of the setting that a variable spells, in lower case; None for an unknown one."""
    if spelled in _own_names():
        return _own_names()[spelled]
    for mapping in MAPPINGS:
        rest = spelled.removeprefix(f"{mapping}_")
        if rest not in (spelled, ""):
            name = rest if mapping == "user" else rest.replace("_", ".")
            return f"{mapping}.{_names_of_vocabularies().get(rest, name) if mapping == 'clients' else name}"
    return _names_of_vocabularies().get(spelled)


def _is_in_mapping(name: str) -> bool:
    """Return whether a setting belongs to a mapping with free names, such as `clients`."""
    mapping, _, rest = name.partition(".")
    return mapping in MAPPINGS and rest not in _names_of_vocabularies().values()


def _own_names() -> dict[str, str]:
    """Return our own names by how a variable spells them, in lower case."""
    return _by_spelling((*EXTRA, *Settings.names()))


@cache
def _by_spelling(names: tuple[str, ...]) -> dict[str, str]:
    return {flat(name): name for name in names}


@cache
def _names_of_vocabularies() -> dict[str, str]:
    """Return the names of all vocabularies by how a variable spells them, in lower case."""
    return {
        flat(prefix + name): prefix + name
        for vocabulary in reversed(vocabularies())
        for prefix in ("", *vocabulary.prefixes)
        for name in vocabulary.names()
    }


# -- NAME=VALUE


def options_layer(options: Iterable[str], load_function: LoadFunction | None = None) -> Layer:
    """Return the settings of NAME=VALUE texts, as the option --set gives them; an empty VALUE is a value."""
    given: list[Given] = []
    for text in options:
        name, equals, value = text.partition("=")
        name = name.strip()
        if not equals or not name:
            shown = name if equals else hide(name, text)
            raise ConfigError(f"--set {shown!r}: expected NAME=VALUE, for instance --set commit_interval=10s")
        if name in MAPPINGS:
            raise ConfigError(f"--set {name}=...: set one of these at a time with {name}.NAME=VALUE")
        given.append((name, value, f"--set {name}"))
    return _layer(given, load_function)


# -- text into values


def _layer(given: Iterable[Given], load_function: LoadFunction | None) -> Layer:
    """Return a layer; its texts become values of the types of their settings."""
    load = load_function or _load_function
    return Layer.read(given, Settings.names(), lambda key, value: value_of(key, value, load))


def value_of(key: Key, value: Any, load_function: LoadFunction) -> Any:
    """Return the value of a setting from text; other values are returned unchanged."""
    if isinstance(value, Secret) and isinstance(key, str):
        with hidden_in_errors(repr(value.reveal())):
            made = value_of(key, value.reveal(), load_function)
        return Secret(made) if isinstance(made, str) and key not in EXTRA else made
    if not isinstance(value, str):
        return value
    if isinstance(key, tuple):
        return _json_or_text(value) if key[0] == "user" else value
    if key in EXTRA:
        return value
    return Settings.type_of(key).of_text(f"setting {key!r}", value, load_function)


def _load_function(target: str) -> Any:
    module, _, attribute = target.partition(":")
    try:
        found: Any = import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{target!r}: {error}; expected MODULE:ATTR of a function") from error
    return found


def _json_or_text(value: str) -> Any:
    try:
        return json.loads(value)
    except ValueError:
        return value
