"""Settings: everything that can be set, with its default and its check."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cached_property
from typing import Annotated, Any, Generic, TypeVar, get_type_hints

from ..changelog import LogChangelog, RestoreListener
from ..clock import Duration
from ..errors import ConfigError, PluginError
from ..hooks import registry
from ..processor import DeadLetter, Handler, Retry, fail, skip
from ..program.extractors import EXTRACTORS, TimestampExtractor, fail_on_invalid_timestamp
from ..program.offset_reset import offset_reset_text
from ..program.serdes import DEFAULTS, SerdeLike
from ..program.wrapping import ProcessorWrapper
from ..support.topic_config import checked_topic_config
from .layers import CODE, Layer, add_origin_to_errors
from .names import unknown
from .secret import HIDDEN, ClientSettings, Secret, hidden_in_errors, hide, is_secret
from .types import DIRECTORY, DURATION, FLAG, PLACE, SettingType, expecting, function, one_of, optional, whole_number

HANDLERS = ("deserialization_handler", "processing_handler", "production_handler")
_OPTIMIZATIONS = ("none", "all", "merge_repartition_topics", "reuse_ktable_source_topics", "single_store_self_join")
T = TypeVar("T")


_FUNCTION_OF_FAILURE = function(("failure",), (fail, skip))


def _handler(setting: str, value: Any) -> Any:
    if isinstance(value, type):
        raise ConfigError(f"{setting}: found the class {value.__name__}; write {value.__name__}(...)")
    return _FUNCTION_OF_FAILURE.check(setting, value)


def _offset_reset(setting: str, value: Any) -> Any:
    offset_reset_text(value, setting)
    return value


def _user(setting: str, value: Any) -> Any:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{setting}: expected a mapping of your own settings, found a {type(value).__name__}")
    return value


def _optimizations(value: Any) -> str:
    # Kafka's names have dots.
    return value.replace(".", "_").replace(" ", "") if isinstance(value, str) else ""


_HANDLER = SettingType(_handler, _FUNCTION_OF_FAILURE.of_text)
_GUARANTEE = SettingType(
    expecting(
        "'exactly_once' or 'at_least_once'",
        lambda value: value in ("exactly_once", "at_least_once"),
        lambda value: "exactly_once" if value == "exactly_once_v2" else value,
    )
)
_OPTIMIZATION = SettingType(
    expecting(
        f"'none', 'all', or some of {', '.join(_OPTIMIZATIONS[2:])} with commas between",
        lambda value: value in _OPTIMIZATIONS or set(value.split(",")) <= set(_OPTIMIZATIONS[2:]),
        _optimizations,
    )
)
_TOPICS = SettingType(
    expecting(
        "names of topics, with commas between",
        lambda value: isinstance(value, tuple) and all(isinstance(each, str) and each for each in value),
        lambda value: (
            tuple(each.strip() for each in value.split(",") if each.strip())
            if isinstance(value, str)
            else tuple(value)
            if isinstance(value, Sequence)
            else value
        ),
    )
)
_BYTES = whole_number(0, expected="a number of bytes, 0 or more")
_BROKERS = whole_number(1, (1 << 15) - 1, "a number of brokers, or -1 for the broker's default", (-1,))
_CLIENTS = SettingType(lambda setting, value: ClientSettings(value))
_EXTRACTOR = function(("record", "partition_time", "wall_clock"), EXTRACTORS)


def _needs_nothing(value: Any) -> None:
    """Need no package, whatever the value is."""


@dataclass(frozen=True)
class Setting(Generic[T]):
    """A setting that a plugin brings: declared once, named in its hook `penstock_settings`, and read with `of`.

    `values` says which are accepted (`penstock.settings.types`). `text` is a sentence that describes the setting.
    `needs` is called with the value when an application with this setting starts or is planned, before anything is
    changed: it raises MissingPackageError where that value needs a package which is not installed.
    """

    name: str
    values: SettingType[T]
    default: T
    text: str
    needs: Callable[[T], None] = _needs_nothing

    def of(self, settings: Settings | Mapping[str, Any]) -> T:
        """Return the value that `settings`, or the `config` of a processor's context, give, or the default."""
        given = settings.of_plugins if isinstance(settings, Settings) else settings
        result: T = given.get(self.name, self.default)
        return result


@dataclass(frozen=True, init=False)
class Settings:
    """Everything that can be set, with its default.

    Durations are timedeltas or text ("10s"). `log`, `changelog` are `NAME:LOCATION`: an installed plugin and where it
    keeps things. A relative location is relative to `data_dir`.
    """

    data_dir: Annotated[str, DIRECTORY] = ".penstock"
    """Directory under which relative locations lie."""
    log: Annotated[str, PLACE] = "local:log"
    """Topics and commits: `local:DIRECTORY` (this host) or `kafka:HOST:PORT`."""
    changelog: Annotated[str, PLACE] = "directory:changelog"
    """The history of the state: `directory:PATH-OR-URL` (any pyarrow.fs location), or `topic:` (compacted topics of the
    log)."""
    state_dir: Annotated[str, DIRECTORY] = "state"
    """Local copies of the state; safe to delete while the application is stopped. `${NAME}` in it is an environment
    variable of the process with the tasks."""
    store_backend: str = DEFAULTS.store_backend
    """Store backend of stores that name none."""
    key_serde: SerdeLike = DEFAULTS.key_serde
    """Serde of topic keys for sources and sinks that name none."""
    value_serde: SerdeLike = DEFAULTS.value_serde
    """Serde of topic values for sources and sinks that name none."""
    state_serde: SerdeLike = DEFAULTS.state_serde
    """Serde of keys and values for stores that name none."""
    timestamp_extractor: Annotated[TimestampExtractor, _EXTRACTOR] = fail_on_invalid_timestamp
    """For sources of topics outside that name none."""
    offset_reset: Annotated[Duration, SettingType(_offset_reset)] = "earliest"
    """Where a new application starts in topics whose source has no `offset_reset`: `earliest`, `latest`, or how far
    back in time, such as `1d`."""
    max_task_idle: Annotated[Duration | None, optional(DURATION)] = "0ms"
    """How long a task waits for data on an empty input while others have some. "0ms": for what the log already has;
    None: never."""
    deserialization_handler: Annotated[Handler, _HANDLER] = fail
    """Decides about records that cannot be read."""
    processing_handler: Annotated[Handler, _HANDLER] = fail
    """Decides about records that a node cannot process."""
    production_handler: Annotated[Handler, _HANDLER] = fail
    """Decides about records that cannot be produced."""
    processor_wrapper: Annotated[ProcessorWrapper | None, optional(function(("node", "processor")))] = None
    """Wraps every processor, e.g. to trace it: a function of the node's name and its new processor."""
    restore_listener: Annotated[RestoreListener | None, optional(function(("event",)))] = None
    """Called with a RestoreEvent when a restore of a task's state begins, after each portion, and when it ends."""
    commit_interval: Annotated[Duration | None, optional(DURATION)] = None
    """The time between two commits of a task. None: 30s, inside a long batch; with the trigger `continuous` 100ms, and
    1s with `at_least_once`."""
    commit_bytes: Annotated[int, whole_number()] = 64 * 1024 * 1024
    """A commit is made when a task holds about this many bytes of outputs and state changes."""
    statestore_cache_max_bytes: Annotated[int, _BYTES] = 10 * 1024 * 1024
    """How many bytes the record caches of all tasks together may have; each task gets an equal share. 0: every update
    is forwarded at once."""
    topology_optimization: Annotated[str, _OPTIMIZATION] = "none"
    """Optimizations by which a StreamsBuilder needs fewer topics and stores: `none`, `all`, or some of
    `merge_repartition_topics`, `reuse_ktable_source_topics` and `single_store_self_join`, with commas between."""
    explicit_internal_names: Annotated[bool, FLAG] = False
    """Refuse a StreamsBuilder whose stores or internal topics have numbered names, which a later change may move."""
    dsl_store_format: Annotated[str, one_of("default", "headers")] = "default"
    """Entries in stores of a StreamsBuilder: `default` has timestamps; `headers` has record headers, too."""
    fetch_bytes: Annotated[int, whole_number()] = 4 * 1024 * 1024
    """About how many bytes a task reads at once."""
    input_buffer_max_bytes: Annotated[int, whole_number()] = 256 * 1024 * 1024
    """With the trigger `continuous`: about how many bytes of records may wait in a task host to be processed."""
    changelog_grace: Annotated[Duration, DURATION] = "1h"
    """How long deltas and snapshots that are no longer needed are kept; longer than the longest batch."""
    state_cleanup_delay: Annotated[Duration, DURATION] = "10m"
    """How long a task's local copy stays after this host last used it."""
    processing_guarantee: Annotated[str, _GUARANTEE] = "exactly_once"
    """`exactly_once` or `at_least_once`. The local log is always exactly once."""
    task_timeout: Annotated[Duration, DURATION] = "5m"
    """How long a task retries while the log cannot be reached; then it fails."""
    replication_factor: Annotated[int, _BROKERS] = -1
    """How many brokers keep each internal topic (-1: the broker's default)."""
    cluster_check: Annotated[bool, FLAG] = True
    """Refuse to start on another Kafka cluster than the one on which the application ran last."""
    topic_config: Annotated[Mapping[str, str], SettingType(checked_topic_config)] = field(default_factory=dict)
    """Settings by Kafka's names with which repartition topics and changelog topics are created."""
    intermediate_topics: Annotated[Sequence[str], _TOPICS] = ()
    """Topics that the application reads and only it writes, where its program does not show that: topics for retries.
    Resets skip them, and backups contain their waiting records.
    """
    offset_out_of_range: Annotated[str, one_of("fail", "earliest", "latest")] = "fail"
    """Reaction to a committed position that the log has no more: `fail`, or continue from `earliest` or `latest`."""
    clients: Annotated[Mapping[str, Any], _CLIENTS] = field(default_factory=dict)
    """Settings of the log's clients by their own names, each for all or with the prefix `consumer.`, `producer.` or
    `admin.`."""
    user: Annotated[Mapping[str, Any], SettingType(_user)] = field(default_factory=dict)
    """Settings of your own, which processors find in `context.config["user"]`."""
    of_plugins: Mapping[str, Any] = field(default_factory=dict)
    """Settings that plugins bring, by name, as far as they were given. A plugin reads its own with `Setting.of`."""

    marked: frozenset[str] = field(default=frozenset(), compare=False)
    """Names of settings that are never shown: their values came as a `Secret`, from a file of their own."""

    def __init__(self, **given: Any) -> None:
        """Take settings by name; others have their defaults. Raises ConfigError for a name or a value that is wrong."""
        of_plugins: dict[str, Any] = {**given.pop("of_plugins", {})}
        marked = given.pop("marked", frozenset()) | {name for name, value in given.items() if isinstance(value, Secret)}
        for name, default in _DEFAULTS.items():
            object.__setattr__(self, name, self._checked(name, given.pop(name, default)))
        for name, value in given.items():
            if name not in self.names():
                raise ConfigError(unknown(name, self.names()))
            of_plugins[name] = self._checked(name, value)
        object.__setattr__(self, "of_plugins", of_plugins)
        object.__setattr__(self, "marked", marked)

    def optimizes(self, what: str) -> bool:
        """Return whether `topology_optimization` includes `what`, for example "merge_repartition_topics"."""
        return self.topology_optimization == "all" or what in self.topology_optimization.split(",")

    @property
    def log_changelog(self) -> type[LogChangelog] | None:
        """The class of the changelog if that is kept in the log; None for one in a place of its own."""
        found = registry().load("changelog", self.changelog.partition(":")[0])
        return found if isinstance(found, type) and issubclass(found, LogChangelog) else None

    def __repr__(self) -> str:
        shown = (f"{name}={self.shown(name)!r}" for name in [*_DEFAULTS, *self.of_plugins])
        return f"Settings({', '.join(shown)})"

    def __getitem__(self, name: str) -> Any:
        """Return a setting by its name, also one that a plugin brings."""
        return getattr(self, name) if name in _DEFAULTS else _declared(name).of(self)

    def shown(self, name: str) -> Any:
        """Return a setting for a message or a log line: without its secrets, such as the user in a location."""
        return HIDDEN if name in self.marked else hide(name, self[name])

    @cached_property
    def by_name(self) -> Mapping[str, Any]:
        """All settings by name, also of plugins, unless a plugin cannot be loaded."""
        found = {}
        for name in self.names():
            with suppress(PluginError):
                found[name] = self[name]
        return found

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "by_name"}

    @classmethod
    def names(cls) -> list[str]:
        """Return the names of all settings: our own, and then those that plugins bring."""
        return [*_DEFAULTS, *registry().names("setting")]

    @classmethod
    def type_of(cls, name: str) -> SettingType[Any]:
        """Return the type of a setting. Raises PluginError for one whose plugin cannot be loaded."""
        return _TYPES[name] if name in _DEFAULTS else _declared(name).values

    @classmethod
    def _checked(cls, name: str, value: Any) -> Any:
        revealed = value.reveal() if isinstance(value, Secret) else value
        with hidden_in_errors(repr(revealed) if is_secret(name, value) else ""):
            return cls.type_of(name).check(f"setting {name!r}", revealed)

    def check_packages(self) -> None:
        """Raise MissingPackageError if settings of plugins need a package that is not installed."""
        for name, value in self.of_plugins.items():
            _declared(name).needs(value)

    @classmethod
    def make(cls, given: Mapping[str, Any]) -> Settings:
        """Return settings with `given` in place of defaults; names may be ours or Kafka's.

        Raises ConfigError for a name without counterpart, with the replacement, and for an unknown one, with the
        nearest names.
        """
        return cls.of(Layer.read(((name, value, CODE) for name, value in given.items()), cls.names()))

    @classmethod
    def of(cls, layer: Layer) -> Settings:
        """Return the settings of a layer, and defaults for the others."""
        values: dict[str, Any] = {}
        for key, value in layer.values.items():
            if isinstance(key, tuple):
                is_plain = key[0] == "topic_config" and isinstance(value, Secret)
                values.setdefault(key[0], {})[key[1]] = value.reveal() if is_plain else value
            elif key != "application_id":
                values[key] = value
        with add_origins_to_errors(layer):
            if "dead_letter_topic" in values:
                values |= _dead_letters(values.pop("dead_letter_topic"), values)
            return cls(**values)


_DEFAULTS: Mapping[str, Any] = {
    each.name: {} if each.default is MISSING else each.default
    for each in fields(Settings)
    if each.name not in ("of_plugins", "marked")
}
"""Our own settings, and their defaults."""
_ANY: SettingType[Any] = SettingType(lambda setting, value: value)
_TYPES: Mapping[str, SettingType[Any]] = {
    name: next((each for each in getattr(hint, "__metadata__", ()) if isinstance(each, SettingType)), _ANY)
    for name, hint in get_type_hints(Settings, include_extras=True).items()
}


def _declared(name: str) -> Setting[Any]:
    """Return a setting that a plugin brings. Raises PluginError for something else."""
    found = registry().load("setting", name)
    if not isinstance(found, Setting) or found.name != name:
        raise PluginError(f"setting {name!r}: expected a penstock.Setting of this name, found {found!r}")
    return found


@contextmanager
def add_origins_to_errors(layer: Layer) -> Iterator[None]:
    """Prefix an error of the block that begins with a setting's name with its origin, and hide secrets of the layer."""
    try:
        with ExitStack() as hiding:
            for value in layer.values.values():
                if isinstance(value, Secret):
                    hiding.enter_context(hidden_in_errors(repr(value.reveal())))
            yield
    except (ConfigError, PluginError) as error:
        match = re.match(r"setting '([\w.-]+)'", str(error))
        with add_origin_to_errors(layer.origins.get(match[1], CODE) if match else CODE):
            raise


def _dead_letters(topic: Any, values: Mapping[str, Any]) -> dict[str, Handler]:
    """Return handlers that send to a dead-letter topic, in place of handlers that skip."""
    if not isinstance(topic, str) or not topic:
        raise ConfigError(f"setting 'dead_letter_topic': expected the name of a topic, found {topic!r}")
    found = {name: handler for name in HANDLERS if (handler := _sending(values.get(name, fail), topic)) is not None}
    if not found:
        raise ConfigError(
            f"setting 'dead_letter_topic': no handler skips records, so nothing would be sent to {topic!r}; "
            f"set one of {', '.join(HANDLERS)} to skip (to fail is to stop without a trace in any topic)"
        )
    return found


def _sending(handler: Handler, topic: str) -> Handler | None:
    """Return a handler that sends to `topic` the records that `handler` drops; None if it drops none."""
    if handler is skip:
        return DeadLetter(topic)
    if isinstance(handler, Retry) and (then := _sending(handler.then, topic)) is not None:
        return replace(handler, then=then)
    return None
