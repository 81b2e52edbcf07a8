"""LogChangelog: a changelog in topics of the application's log. What its author implements."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import ClassVar

from ..log import Log
from ..record import OutputBatch
from ..store import Changes
from ..store.kept_store import Layout
from .changelog import Restore, TaskChangelog


class LogChangelog(TaskChangelog):
    """A changelog whose deltas are records of the log, produced by the commit that names their version.

    It has one topic for each logged store. The application creates these topics, with a partition for each task, and
    deletes them at a reset. The partition of a task is the number after the "_" in its id. A task is opened behind its
    fence: nobody else produces to its partitions, so all that can be read there belongs to a commit. Nothing is deleted
    or compacted but by the log. `penstock.testing.contracts` has the tests that any
    implementation must pass.

    One thread calls all methods. A plugin names the class itself, which has `topic_of` and `topic_config` before any
    task is opened.
    """

    topic_config: ClassVar[Mapping[str, str]]
    """The settings that its topics are created with, as Kafka names them; `cleanup.policy` is `compact`."""
    last_seen: Callable[[str], float | None] | None = None
    """Returns how many seconds ago a version was certainly the task's last one; None if that is unknown.

    A process that follows the task sets this function before the first call of `restore`. Compaction deletes tombstones
    after a time (`delete.retention.ms`). Tombstones after a version are younger than the returned age, so even a copy
    at an old version may be caught up. An implementation that ignores it starts such a copy afresh.
    """

    @abstractmethod
    def __init__(self, location: str, application_id: str, task_id: str, *, log: Log, stores: Layout) -> None:
        """Open, without reading or writing; `location` is what the `changelog` setting says after its name.

        `log` is the application's log, which its owner closes. `stores` are the task's logged stores.
        """

    @staticmethod
    @abstractmethod
    def topic_of(application_id: str, store: str) -> str:
        """Return the name of a store's topic."""

    def version_suffix(self, previous: str | None) -> str:
        """Return the end of the name of the version after `previous`: "", or "-" and letters, digits, '-' and '_'.

        `previous` is None for the first version of all; raises ChangelogError if the topics have a history then.
        """
        return ""

    @abstractmethod
    def records(self, changes: Changes) -> list[OutputBatch]:
        """Return the records of a delta, for the commit that names its version; they go to the task's partition.

        `changes` are rows of the stores: keys and values as the stores write them to their backends, None for a deleted
        row. After a commit that failed the task is opened again.
        """

    @abstractmethod
    def begin(self, stores: Collection[str], entries: Iterable[tuple[str, bytes, bytes]]) -> list[OutputBatch]:
        """Return records that replace the history of `stores` by `entries`: (store, key, value).

        The topic may have entries of an earlier store of the same name.
        """

    @abstractmethod
    def restore(self, target: str, have: str | None) -> Restore:
        """Plan how to bring a copy that is at `have` to `target`, the version of the last commit.

        A history begins at the partition's start offset, or at its committed position where that is higher: a reset
        that was killed before it deleted the topics has left one. It ends at the end offset with `stable=False`; wait
        until the stable one is equal, since records of the last commit may not be readable yet. Raises ChangelogError
        that names the topic if records of the history are lost.
        """
