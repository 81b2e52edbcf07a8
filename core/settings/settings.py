"""Settings: everything that can be set, with its default and its check."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from os import PathLike
from typing import Any

from ..changelog import LogChangelog
from ..clock import Duration, duration_ms
from ..errors import ConfigError, PluginError, TopologyError
from ..extractors import TimestampExtractor, fail_on_invalid_timestamp
from ..handlers import DeadLetter, Handler, Retry, fail, skip
from ..hooks import registry
from ..log.offset_reset import offset_reset_text
from ..program.serdes import DEFAULTS, SerdeLike
from ..program.wrapping import ProcessorWrapper
from ..support.callbacks import check_called_with
from .layers import CODE, Layer, add_origin_to_errors
from .secret import ClientSettings, Secret, hide

_OPTIMIZATIONS = ("merge_repartition_topics", "reuse_ktable_source_topics", "single_store_self_join")
HANDLERS = ("deserialization_handler", "processing_handler", "production_handler")
_FUNCTIONS = {
    **dict.fromkeys(HANDLERS, ("failure",)),
    "timestamp_extractor": ("record", "partition_time", "wall_clock"),
    "processor_wrapper": ("node", "processor"),
}
"""Settings that are functions, and what these are called with."""
_CHOICES = {
    "processing_guarantee": ("exactly_once", "at_least_once"),
    "offset_out_of_range": ("fail", "earliest", "latest"),
    "dsl_store_format": ("default", "headers"),
}


@dataclass(frozen=True)
class Settings:
    """Everything that can be set, with its default.

    Durations are timedeltas or text ("10s"). `log`, `changelog` are `NAME:LOCATION`: an installed plugin and where it
    keeps things. A relative location is relative to `data_dir`.
    """

    data_dir: str = ".penstock"
    """Directory under which relative locations lie."""
    log: str = "local:log"
    """Topics and commits: `local:DIRECTORY` (this host) or `kafka:HOST:PORT`."""
    changelog: str = "directory:changelog"
    """The history of the state: `directory:PATH-OR-URL` (any pyarrow.fs location), or `topic:` (compacted topics of the
    log)."""
    state_dir: str = "state"
    """Local copies of the state; safe to delete while the application is stopped."""
    checkpoint_dir: str = "checkpoint"
    """Spark's checkpoint; disposable, the truth is in the log."""
    store_backend: str = DEFAULTS.store_backend
    """Store backend of stores that name none."""
    key_serde: SerdeLike = DEFAULTS.key_serde
    """Serde of topic keys for sources and sinks that name none."""
    value_serde: SerdeLike = DEFAULTS.value_serde
    """Serde of topic values for sources and sinks that name none."""
    state_serde: SerdeLike = DEFAULTS.state_serde
    """Serde of keys and values for stores that name none."""
    timestamp_extractor: TimestampExtractor = fail_on_invalid_timestamp
    """For sources of topics outside that name none."""
    offset_reset: Duration = "earliest"
    """Where a new application starts in topics whose source has no `offset_reset`: `earliest`, `latest`, or how far
    back in time, such as `1d`."""
    max_task_idle: Duration | None = "0ms"
    """How long a task waits for data on an empty input while others have some. "0ms": for what the log already has;
    None: never."""
    deserialization_handler: Handler = fail
    """Decides about records that cannot be read."""
    processing_handler: Handler = fail
    """Decides about records that a node cannot process."""
    production_handler: Handler = fail
    """Decides about records that cannot be produced."""
    processor_wrapper: ProcessorWrapper | None = None
    """Wraps every processor, e.g. to trace it: a function of the node's name and its new processor."""
    commit_interval: Duration | None = None
    """The time between two commits of a task. None: 30s, inside a long batch; with the trigger `continuous` 100ms, and
    1s with `at_least_once`."""
    commit_bytes: int = 64 * 1024 * 1024
    """A commit is made when a task holds about this many bytes of outputs and state changes."""
    statestore_cache_max_bytes: int = 10 * 1024 * 1024
    """How many bytes the record caches of all tasks together may have; each task gets an equal share. 0: every update
    is forwarded at once."""
    topology_optimization: str = "none"
    """What a StreamsBuilder may do to need fewer topics and stores: `none`, `all`, or some of
    `merge_repartition_topics`, `reuse_ktable_source_topics` and `single_store_self_join`, with commas between."""
    explicit_internal_names: bool = False
    """Refuse a StreamsBuilder whose stores or internal topics have numbered names, which a later change may move."""
    dsl_store_format: str = "default"
    """What stores of a StreamsBuilder keep beside values: `default`: timestamps; `headers`: record headers, too."""
    fetch_bytes: int = 4 * 1024 * 1024
    """About how many bytes a task reads at once."""
    input_buffer_max_bytes: int = 256 * 1024 * 1024
    """With the trigger `continuous`: about how many bytes of records may wait in a task host to be processed."""
    max_records_per_batch: int | None = None
    """The most records a batch plans to read over all partitions (None: only its time is limited)."""
    punctuation_interval: Duration = "1s"
    """How often the wall clock ticks when there is no data; only applications with wall-clock punctuators notice."""
    parallelism: int | None = None
    """Spark partitions that tasks are spread over (None: as many as there are cores, at most one a task)."""
    changelog_grace: Duration = "1h"
    """How long deltas and snapshots that are no longer needed are kept; longer than the longest batch."""
    state_cleanup_delay: Duration = "10m"
    """How long a task's local copy stays after this host last used it."""
    processing_guarantee: str = "exactly_once"
    """`exactly_once` or `at_least_once`. The local log is always exactly once."""
    task_timeout: Duration = "5m"
    """How long a task goes on trying while the log cannot be reached; then it fails."""
    replication_factor: int = -1
    """How many brokers keep each internal topic (-1: what the broker's default is)."""
    offset_out_of_range: str = "fail"
    """What to do when a committed position is no longer in the log: `fail`, or go on from `earliest` or `latest`."""
    metrics_port: int | None = None
    """The port on which the driver of a run serves its counts to Prometheus; None or 0: it does not."""
    metrics_host: str = "127.0.0.1"
    """The address that `metrics_port` is opened on; `0.0.0.0` for all of the host's."""
    clients: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the log's clients by their own names, each for all or with the prefix `consumer.`, `producer.` or
    `admin.`."""
    user: Mapping[str, Any] = field(default_factory=dict)
    """Settings of your own, which processors find in `context.config["user"]`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "clients", ClientSettings(self.clients))
        if self.processing_guarantee == "exactly_once_v2":
            object.__setattr__(self, "processing_guarantee", "exactly_once")
        for name in (
            "commit_interval", "punctuation_interval", "changelog_grace", "state_cleanup_delay", "max_task_idle",
            "task_timeout",
        ):  # fmt: skip
            value = getattr(self, name)
            if value is None and name in ("max_task_idle", "commit_interval"):
                continue
            if duration_ms(value, f"setting {name!r}") < 0:
                raise ConfigError(f"setting {name!r}: expected a length of time of 0 or more, found {value!r}")
        for name in ("log", "changelog"):
            value = getattr(self, name)
            if not isinstance(value, str) or ":" not in value:
                raise ConfigError(f"setting {name!r}: expected NAME:LOCATION, found {value!r}")
        for name in ("data_dir", "state_dir", "checkpoint_dir"):
            if not isinstance(getattr(self, name), (str, PathLike)):
                raise ConfigError(f"setting {name!r}: expected a directory's path, found {getattr(self, name)!r}")
        if not isinstance(self.user, Mapping):
            raise ConfigError(
                f"setting 'user': expected a mapping of your own settings, found a {type(self.user).__name__}"
            )
        for name in ("commit_bytes", "fetch_bytes", "input_buffer_max_bytes", "max_records_per_batch", "parallelism"):
            value = getattr(self, name)
            if value is None and name in ("max_records_per_batch", "parallelism"):
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ConfigError(f"setting {name!r}: expected a whole number above 0, found {value!r}")
        cache_bytes = self.statestore_cache_max_bytes
        if not isinstance(cache_bytes, int) or isinstance(cache_bytes, bool) or cache_bytes < 0:
            raise ConfigError(
                f"setting 'statestore_cache_max_bytes': expected a number of bytes, 0 or more, found {cache_bytes!r}"
            )
        factor = self.replication_factor
        if not isinstance(factor, int) or isinstance(factor, bool) or not (factor == -1 or 1 <= factor < 1 << 15):
            raise ConfigError(
                "setting 'replication_factor': expected a number of brokers, or -1 for the broker's default, found "
                f"{factor!r}"
            )
        port = self.metrics_port
        if port is not None and (not isinstance(port, int) or isinstance(port, bool) or not 0 <= port < 1 << 16):
            raise ConfigError(f"setting 'metrics_port': expected a port, or 0 or None for none, found {port!r}")
        if not isinstance(self.metrics_host, str) or not self.metrics_host:
            raise ConfigError(f"setting 'metrics_host': expected a host's name or address, found {self.metrics_host!r}")
        explicit = self.explicit_internal_names
        if not isinstance(explicit, bool):
            raise ConfigError(f"setting 'explicit_internal_names': expected True or False, found {explicit!r}")
        offset_reset_text(self.offset_reset, "setting 'offset_reset'")
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise ConfigError(
                    f"setting {name!r}: expected {' or '.join(map(repr, choices))}, found {getattr(self, name)!r}"
                )
        self._check_optimizations()
        for name, arguments in _FUNCTIONS.items():
            if (name, getattr(self, name)) != ("processor_wrapper", None):
                _check_function(name, getattr(self, name), arguments)

    def _check_optimizations(self) -> None:
        given = self.topology_optimization
        # Kafka's names have dots.
        chosen = given.replace(".", "_").replace(" ", "") if isinstance(given, str) else ""
        if chosen not in ("none", "all") and not set(chosen.split(",")) <= set(_OPTIMIZATIONS):
            raise ConfigError(
                f"setting 'topology_optimization': expected 'none', 'all', or some of {', '.join(_OPTIMIZATIONS)} with "
                f"commas between, found {given!r}"
            )
        object.__setattr__(self, "topology_optimization", chosen)

    def optimizes(self, what: str) -> bool:
        """Return whether `topology_optimization` asks for `what`, for example "merge_repartition_topics"."""
        return self.topology_optimization == "all" or what in self.topology_optimization.split(",")

    @property
    def log_changelog(self) -> type[LogChangelog] | None:
        """The class of the changelog if that is kept in the log; None for one in a place of its own."""
        found = registry().load("changelog", self.changelog.partition(":")[0])
        return found if isinstance(found, type) and issubclass(found, LogChangelog) else None

    def __repr__(self) -> str:
        shown = (f"{each.name}={hide(each.name, getattr(self, each.name))!r}" for each in fields(self))
        return f"Settings({', '.join(shown)})"

    @classmethod
    def names(cls) -> list[str]:
        """Return the names of all settings."""
        return [each.name for each in fields(cls)]

    @classmethod
    def make(cls, given: Mapping[str, Any]) -> Settings:
        """Return settings with `given` in place of defaults; names may be ours or Kafka's.

        Raises ConfigError for a name without counterpart, with what to do instead, and for an unknown one, with the
        nearest names.
        """
        return cls.of(Layer.read(((name, value, CODE) for name, value in given.items()), cls.names()))

    @classmethod
    def of(cls, layer: Layer) -> Settings:
        """Return the settings of a layer, and defaults for the others."""
        values: dict[str, Any] = {}
        for key, value in layer.values.items():
            if isinstance(key, tuple):
                values.setdefault(key[0], {})[key[1]] = value
            elif key != "application_id":
                values[key] = value.reveal() if isinstance(value, Secret) else value
        with add_origins_to_errors(layer):
            if "dead_letter_topic" in values:
                values |= _dead_letters(values.pop("dead_letter_topic"), values)
            return cls(**values)


@contextmanager
def add_origins_to_errors(layer: Layer) -> Iterator[None]:
    """Prefix an error of the block that begins with a setting's name with the origin of that setting."""
    try:
        yield
    except (ConfigError, PluginError) as error:
        found = re.match(r"setting '(\w+)'", str(error))
        with add_origin_to_errors(layer.origins.get(found[1], CODE) if found else CODE):
            raise


def _check_function(name: str, function: Any, arguments: Sequence[str]) -> None:
    if not callable(function):
        raise ConfigError(f"setting {name!r}: expected a function, found {function!r}")
    if isinstance(function, type) and name in HANDLERS:
        raise ConfigError(f"setting {name!r}: found the class {function.__name__}; write {function.__name__}(...)")
    try:
        check_called_with(f"setting {name!r}", "it", function, arguments)
    except TopologyError as error:
        raise ConfigError(str(error)) from error


def _dead_letters(topic: Any, values: Mapping[str, Any]) -> dict[str, Handler]:
    """Return the handlers that send to a dead-letter topic, in place of those that skip."""
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
    """Return a handler that sends to `topic` what `handler` drops; None when that drops nothing."""
    if handler is skip or isinstance(handler, DeadLetter):
        return DeadLetter(topic)
    if isinstance(handler, Retry) and (then := _sending(handler.then, topic)) is not None:
        return replace(handler, then=then)
    return None
