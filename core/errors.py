"""Every error penstock raises on purpose. Messages name the node, store, topic or option, and the fix."""

from __future__ import annotations

from collections.abc import Mapping

from .record import TopicPartition


class PenstockError(Exception):
    """Base of all errors that penstock raises on purpose."""


class TopologyError(PenstockError):
    """The program is not a valid topology (raised while it is built)."""


class ConfigError(PenstockError):
    """A setting is unknown, missing or out of range."""


class PluginError(PenstockError):
    """A named plugin is not installed, is broken, or is of the wrong kind."""


class SerdeError(PenstockError):
    """A value cannot be turned into bytes, or bytes into a value, by the serde in charge."""


class SerdeUnavailableError(PenstockError):
    """A serde lacks something from outside, such as its schema registry.

    The record is not at fault: no handler is asked, and the task fails.
    """


class ProcessingError(PenstockError):
    """A record could not be processed and the handler in charge said to fail."""


class ProductionError(PenstockError):
    """A record could not be produced and the handler in charge said to fail."""


class RecordRefusedError(ProductionError):
    """A log refused a record, and nothing was changed.

    `above`: maximum bytes of key and value in this topic. `without_key`: the topic requires a key. `earliest`,
    `latest`: the topic currently refuses timestamps (ms) before or after these.
    """

    def __init__(
        self,
        message: str,
        topic: str = "",
        *,
        above: int | None = None,
        without_key: bool = False,
        earliest: int | None = None,
        latest: int | None = None,
    ) -> None:
        super().__init__(message)
        self.topic = topic
        self.above = above
        self.without_key = without_key
        self.earliest = earliest
        self.latest = latest

    def refuses(self, key: bytes | None, value: bytes | None, timestamp: int | None = None) -> bool:
        """Return whether the topic refuses a record for the same reason."""
        return (
            (self.without_key and key is None)
            or (self.above is not None and len(key or b"") + len(value or b"") > self.above)
            or (self.earliest is not None and timestamp is not None and timestamp < self.earliest)
            or (self.latest is not None and timestamp is not None and timestamp > self.latest)
        )

    @property
    def moves_with_the_clock(self) -> bool:
        """Whether the topic accepts such a record at another time."""
        return self.earliest is not None or self.latest is not None

    def refuses_more_than(self, other: RecordRefusedError) -> bool:
        """Return whether it refuses records that `other` does not. If it does not say which, `other` must."""
        ours, theirs = self._limits(), other._limits()
        if not ours:
            return bool(theirs)
        return any(name not in theirs or limit < theirs[name] for name, limit in ours.items())

    def _limits(self) -> dict[str, int]:
        """Return its limits: the lower one, the more it refuses."""
        limits = {"above": self.above, "latest": self.latest}
        limits["earliest"] = None if self.earliest is None else -self.earliest
        limits["without_key"] = 0 if self.without_key else None
        return {name: limit for name, limit in limits.items() if limit is not None}


class SinkError(PenstockError):
    """A target outside of the log cannot be written, and a person has to repair that."""


class SinkUnavailableError(SinkError):
    """A target is away, or too slow. The engine waits, and opens it again; no handler is asked."""


class SinkMovedError(SinkError):
    """The position in a target is not the one that a write follows: another process has written. Nothing changed."""


class SinkRefusedError(SinkError):
    """A target refuses a record by what is in it, and nothing was changed.

    `refusals`: by offset, why it refuses each of several records; empty: it is one record, or it is not known which.
    """

    def __init__(self, message: str, refusals: Mapping[int, SinkRefusedError] | None = None) -> None:
        super().__init__(message)
        self.refusals = dict(refusals or {})


class StoreError(PenstockError):
    """A state store cannot be used, or was used against its contract."""


class StaleStoreError(StoreError):
    """A store on this host is not at the version that the caller expected."""


class StoreLockedError(StoreError):
    """Another process keeps the write lock of a store on this host: restore into a new directory."""


class StoreUnavailableError(StoreError):
    """No copy of a store that a query may read is there now: ask again later, elsewhere, or with other bounds."""


class ChangelogError(PenstockError):
    """A changelog cannot be read or written, or its chain is broken."""


class LogError(PenstockError):
    """The log (topics, positions, commits) cannot be used. `partition`: the affected one, if a call reads several."""

    partition: TopicPartition | None = None


class LeaseTakenError(LogError):
    """Another driver runs the application."""


class LeaseHeldError(LeaseTakenError):
    """Another driver holds the application's lease; it may have been killed, and then the lease ends soon."""


class UnknownTopicError(LogError):
    """A topic that was named does not exist."""


class TopicExistsError(LogError):
    """A topic that was to be created exists."""


class OffsetOutOfRangeError(LogError):
    """A position lies before the first record that the log still has, or after its end."""


class FencedError(LogError):
    """The commit is refused: another process has taken over this task, or its transaction was ended.

    Nothing was changed. Open the task again, which finds its last commit.
    """


class IncompatibleStateError(PenstockError):
    """Saved state does not fit the program (partition count, sub-topologies, missing commits)."""


class RuntimeUnavailableError(PenstockError):
    """A requirement of the runtime is missing (Java, a package); the message has advice."""


class MissingPackageError(RuntimeUnavailableError, ImportError):
    """A package that a feature needs is not installed; the message has the command that installs it.

    It is an ImportError too, so `try: ... except ImportError` around an import works as with any library. `packages`:
    the names of the packages; `lack`: the problem, such as "is not installed".
    """

    def __init__(self, message: str, *, name: str = "", packages: tuple[str, ...] = (), lack: str = "") -> None:
        super().__init__(message, name=name or None)
        self.packages = packages
        self.lack = lack
