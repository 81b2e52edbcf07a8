"""Names for authors of plugins, and for annotations; each can be imported from `penstock`, or from its own module."""

from .changelog import Changelog, DeltaChangelog, LogChangelog, Restore, TaskChangelog
from .clock import Clock, Duration, ManualClock, Punctuator, SystemClock, duration_ms
from .context import NodeMetrics
from .errors import (
    ChangelogError,
    FencedError,
    IncompatibleStateError,
    LogError,
    OffsetOutOfRangeError,
    PluginError,
    ProductionError,
    RecordRefusedError,
    RuntimeUnavailableError,
    SerdeError,
    StaleStoreError,
    StoreLockedError,
    UnknownTopicError,
)
from .extractors import (
    TimestampExtractor,
    fail_on_invalid_timestamp,
    skip_on_invalid_timestamp,
    use_partition_time_on_invalid_timestamp,
    wall_clock_timestamp,
)
from .handlers import Decision, Fail, RetryAfter, SendToDeadLetter, Skip
from .log import Commit, Lease, Log, LogFactory, TaskCommitter, TopicInfo
from .processor import ConnectedStoreProvider, ProcessorSupplier
from .program.assignment import Assignment
from .program.compatibility import check_compatible
from .program.nodes import (
    GlobalStore,
    InternalTopic,
    Node,
    Partitioner,
    ProcessorNode,
    SinkNode,
    SourceNode,
    Subtopology,
    TaskId,
    TopicChooser,
)
from .program.wrapping import ProcessorWrapper, WrappingProcessor, WrappingTransformer
from .record import Header, Headers, OutputBatch, RecordBatch, TopicPartition
from .serde import BoolSerde, BytesSerde, FloatSerde, IntSerde, StrSerde
from .settings.settings import Setting
from .store import BytesStore, Entries, StateStore, StoreBackend, StoreBackendFactory, StoreBuilder, StoreContext
from .store.kinds.headers import ValueTimestampHeaders
from .store.kinds.key_value import HeadersKeyValueStore, KeyValueStoreSpec, ReadOnlyKeyValueStore
from .store.kinds.list_store import ListStoreSpec, ReadOnlyListStore
from .store.kinds.lru_map import LruMapSpec
from .store.kinds.session import ReadOnlySessionStore, SessionStoreSpec
from .store.kinds.versioned import (
    NOT_PUT,
    VALID_TO_UNDEFINED,
    ReadOnlyVersionedKeyValueStore,
    VersionedRecord,
    VersionedStoreSpec,
)
from .store.kinds.window import HeadersWindowStore, ReadOnlyWindowStore, TimestampedWindowStore, WindowStoreSpec
from .store.record_cache import Change
from .store.specs import StoreSpec
from .store.traits import StoreTraits
from .store.view import StoreView

__all__ = [
    "Assignment",
    "BoolSerde",
    "BytesSerde",
    "BytesStore",
    "Change",
    "Changelog",
    "ChangelogError",
    "Clock",
    "Commit",
    "ConnectedStoreProvider",
    "Decision",
    "DeltaChangelog",
    "Duration",
    "Entries",
    "Fail",
    "FencedError",
    "FloatSerde",
    "GlobalStore",
    "Header",
    "Headers",
    "HeadersKeyValueStore",
    "HeadersWindowStore",
    "IncompatibleStateError",
    "IntSerde",
    "InternalTopic",
    "KeyValueStoreSpec",
    "Lease",
    "ListStoreSpec",
    "Log",
    "LogChangelog",
    "LogError",
    "LogFactory",
    "LruMapSpec",
    "ManualClock",
    "NOT_PUT",
    "Node",
    "NodeMetrics",
    "OffsetOutOfRangeError",
    "OutputBatch",
    "Partitioner",
    "PluginError",
    "ProcessorNode",
    "ProcessorSupplier",
    "ProcessorWrapper",
    "ProductionError",
    "Punctuator",
    "ReadOnlyKeyValueStore",
    "ReadOnlyListStore",
    "ReadOnlySessionStore",
    "ReadOnlyVersionedKeyValueStore",
    "ReadOnlyWindowStore",
    "RecordBatch",
    "RecordRefusedError",
    "Restore",
    "RetryAfter",
    "RuntimeUnavailableError",
    "SendToDeadLetter",
    "SerdeError",
    "SessionStoreSpec",
    "Setting",
    "SinkNode",
    "Skip",
    "SourceNode",
    "StaleStoreError",
    "StateStore",
    "StoreBackend",
    "StoreBackendFactory",
    "StoreBuilder",
    "StoreContext",
    "StoreLockedError",
    "StoreSpec",
    "StoreTraits",
    "StoreView",
    "StrSerde",
    "Subtopology",
    "SystemClock",
    "TaskChangelog",
    "TaskCommitter",
    "TaskId",
    "TimestampExtractor",
    "TimestampedWindowStore",
    "TopicChooser",
    "TopicInfo",
    "TopicPartition",
    "UnknownTopicError",
    "VALID_TO_UNDEFINED",
    "ValueTimestampHeaders",
    "VersionedRecord",
    "VersionedStoreSpec",
    "WindowStoreSpec",
    "WrappingProcessor",
    "WrappingTransformer",
    "check_compatible",
    "duration_ms",
    "fail_on_invalid_timestamp",
    "skip_on_invalid_timestamp",
    "use_partition_time_on_invalid_timestamp",
    "wall_clock_timestamp",
]
