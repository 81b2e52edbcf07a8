"""penstock: the names that users write every day. Those for authors of plugins can be imported from here, too."""

from .clock import STREAM_TIME, WALL_CLOCK_TIME, Cancellable, PunctuationType
from .context import ProcessorContext, ValueTransformerContext
from .errors import ConfigError, PenstockError, ProcessingError, StoreError, TopologyError
from .for_plugins import *  # noqa: F403 (it has the list)
from .handlers import DeadLetter, Failure, Handler, Retry, Stage, fail, skip
from .hooks import hookimpl, plugin_manager
from .processor import AsyncProcessor, BatchProcessor, Processor, ValueTransformer, visitor
from .program.builder import Topology
from .program.partitioning import default_partitioner
from .program.program import Program
from .record import Record, RecordMetadata
from .serde import Serde
from .settings.application import Application, run
from .settings.running import Progress, Running, StateChange, Summary
from .settings.secret import Secret
from .settings.settings import Settings
from .store import ValueAndTimestamp
from .store.kinds.key_value import ExpiringKeyValueStore, KeyValueStore, TimestampedKeyValueStore, key_value_store
from .store.kinds.list_store import ListStore, list_store
from .store.kinds.lru_map import lru_map
from .store.kinds.session import SessionStore, session_store
from .store.kinds.versioned import VersionedKeyValueStore, versioned_store
from .store.kinds.window import WindowStore, window_store
from .store.kinds.windowed import Windowed

__all__ = [
    "Application",
    "AsyncProcessor",
    "BatchProcessor",
    "Cancellable",
    "ConfigError",
    "DeadLetter",
    "ExpiringKeyValueStore",
    "Failure",
    "Handler",
    "KeyValueStore",
    "ListStore",
    "PenstockError",
    "ProcessingError",
    "Processor",
    "ProcessorContext",
    "Program",
    "Progress",
    "PunctuationType",
    "Record",
    "RecordMetadata",
    "Retry",
    "Running",
    "STREAM_TIME",
    "Secret",
    "Serde",
    "SessionStore",
    "Settings",
    "Stage",
    "StateChange",
    "StoreError",
    "Summary",
    "TimestampedKeyValueStore",
    "Topology",
    "TopologyError",
    "ValueAndTimestamp",
    "ValueTransformer",
    "ValueTransformerContext",
    "VersionedKeyValueStore",
    "WALL_CLOCK_TIME",
    "WindowStore",
    "Windowed",
    "default_partitioner",
    "fail",
    "hookimpl",
    "key_value_store",
    "list_store",
    "lru_map",
    "plugin_manager",
    "run",
    "session_store",
    "skip",
    "versioned_store",
    "visitor",
    "window_store",
]
