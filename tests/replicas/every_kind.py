"""An application with every kind of store, one task of it, and what was committed when."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from penstock import (
    Application,
    Log,
    Processor,
    PunctuationType,
    Record,
    SystemClock,
    Topology,
    Windowed,
    key_value_store,
    list_store,
    lru_map,
    session_store,
    versioned_store,
    window_store,
)
from penstock.changelog import version_counter
from penstock.plugins.changelogs.directory import DirectoryChangelog
from penstock.plugins.engine.program.preparation import prepare
from penstock.plugins.engine.task.locations import open_changelog
from penstock.plugins.engine.task.process_resources import ProcessResources
from penstock.plugins.engine.task.task_worker import TaskWorker
from penstock.plugins.state.copies import Replica, saved_tasks
from penstock.program.nodes import TaskId
from penstock.record import OutputBatch, TopicPartition
from penstock.store import ValueAndTimestamp

INPUT = TopicPartition("in", 0)
Content = dict[str, dict[bytes, bytes]]
OPTIONS: dict[str, Any] = {"key_serde": "str", "value_serde": "str"}
STORES = [
    key_value_store("plain", **OPTIONS),
    key_value_store("stamped", timestamped=True, **OPTIONS),
    key_value_store("expiring", ttl="50ms", **OPTIONS),
    window_store("windows", retention="100ms", window_size="10ms", **OPTIONS),
    window_store("twice", retention="100ms", window_size="10ms", retain_duplicates=True, **OPTIONS),
    session_store("sessions", retention="100ms", **OPTIONS),
    versioned_store("versions", history_retention="100ms", **OPTIONS),
    list_store("lists", **OPTIONS),
    lru_map("recent", max_entries=3, **OPTIONS),
]


NAMES = {each.name for each in STORES}


class Keep(Processor):
    """Puts each record into every store; no value deletes the key. Sets a timer, and passes the record on."""

    def init(self, context: Any) -> None:
        super().init(context)
        self.kept = {each.name: context.get_store(each.name) for each in STORES if each.name in NAMES}

    def process(self, record: Record) -> None:
        key, value, time, stores = record.key, record.value or None, record.timestamp, self.kept
        for name in {"plain", "expiring", "recent"} & stores.keys():
            stores[name].put(key, value)
        stores["stamped"].put(key, None if value is None else ValueAndTimestamp(value, time))
        stores["windows"].put(key, value, time // 10 * 10)
        stores["twice"].put(key, value, time // 10 * 10)
        stores["sessions"].put(Windowed(key, time // 20 * 20, time), value)
        stores["versions"].put(key, value, time)
        if value is None:
            stores["lists"].delete(key)
        else:
            stores["lists"].add(key, value)
        self.context.timer(key, time + 30, PunctuationType.STREAM_TIME)
        self.context.forward(record)

    def on_timer(self, key: Any, at: int) -> None:
        self.context.forward(Record(key, f"timer {at}", at))


def application(directory: Path, changelog: str, log: str = "memory:x", **settings: Any) -> Application:
    topology = (
        Topology()
        .add_source("in", "in", key_serde="str", value_serde="str")
        .add_processor("keep", Keep, "in", stores=STORES)
        .add_sink("out", "out", "keep", key_serde="str", value_serde="str")
    )
    given = {"log": log, "changelog": changelog, "data_dir": str(directory), "store_backend": "memory", **settings}
    return Application("app", topology, **given)


class Writer:
    """The one task of the application, and the content of each of its versions, by the code that restores a task."""

    def __init__(self, app: Application, log: Log) -> None:
        self.application = app
        self.log = log
        self.contents: dict[str, Content] = {}
        self.time = 0
        for topic in ("in", "out"):
            log.create_topic(topic, 1)
        prepare(app, log)
        self.worker = self._new()

    def _new(self) -> TaskWorker:
        return TaskWorker(self.application, TaskId(0, 0), [INPUT], self.log, resources=ProcessResources())

    def commit(self, rows: list[tuple[str, str]]) -> str:
        """Process records in one commit; return the version after it."""
        for key, value in rows:
            self.time += 5
            self.log.append(OutputBatch("in", [key.encode()], [value.encode()], [self.time]))
        version = self.worker.run_batch(self.log.end_offsets([INPUT]), 0).version
        self.contents[version] = self.restored(version)
        return version

    def restart(self, *, clean: bool) -> None:
        """Open the task again, after a close or as after a kill."""
        if clean:
            self.worker.close()
        self.worker = self._new()
        self.commit([])

    def changelog(self) -> Any:
        layout = saved_tasks(self.application.id, self.log)["0_0"].layouts.now
        return open_changelog(self.application.settings, self.application.id, "0_0", self.log, layout)

    def restored(self, version: str) -> Content:
        content: Content = {}
        with closing(self.changelog()) as changelog:
            for changes, _ in changelog.restore(version, None).steps:
                for store, rows in changes.items():
                    for key, value in rows:
                        content.setdefault(store, {})[key] = value
                        if value is None:
                            del content[store][key]
        return {store: rows for store, rows in content.items() if rows}

    # ------------------------------------------------------------------ what happens to a directory

    def snapshot_and_clean(self, *, snapshot: bool) -> None:
        """Write a snapshot of the last version, and delete what is not needed."""
        last = self.log.last_commit("app", "0_0", [INPUT])
        if last is None or last.version not in self.contents:
            return
        state = self.worker._state
        changelog = self.changelog() if state is None else state._changelog  # the task itself cleans
        if not isinstance(changelog, DirectoryChangelog):
            self.log.maintain(SystemClock().now_ms())  # compacts, and keeps the tombstones of the last day
            return
        if snapshot:
            content = self.contents[last.version]
            rows = ((store, *row) for store in sorted(content) for row in sorted(content[store].items()))
            changelog.snapshot(last.version, rows, last)
        changelog.clean(last.version, 0, 10**15, lambda: True)

    def orphan(self) -> None:
        """Write a delta that no commit names, as a process does that is killed before its commit."""
        last, changelog = self.log.last_commit("app", "0_0", [INPUT]), self.changelog()
        if last is not None and isinstance(changelog, DirectoryChangelog):
            version = f"{version_counter(last.version) + 1:012d}-0{last.version.partition('-')[2][1:]}"
            changelog.append({"plain": [(b"orphan", b"\x00never")]}, last.version, version, last)

    def tear(self) -> None:
        """Leave a part of a delta at the end of the newest file, as a process does that is killed while it writes."""
        root = Path(self.application.settings.data_dir) / self.application.settings.changelog.partition(":")[2]
        files = sorted((root / "app" / "0_0").glob("*.delta"))
        if files:
            with open(files[-1], "ab") as file:
                file.write(b"\x93half of a delta")


def content_of(replica: Replica) -> Content:
    """Return the rows of all stores of a replica."""
    found = {store: dict(replica.backend(store).range(store)) for store in replica.layout}
    return {store: rows for store, rows in found.items() if rows}


def checked(replica: Replica, writer: Writer) -> Callable[[], None]:
    """Return a function that checks that the replica shows a committed version or none, and never an earlier one."""
    newest = [-1]

    def check() -> None:
        version = replica.version
        if version is not None:
            expected = {store: rows for store, rows in writer.contents[version].items() if store in replica.layout}
            assert content_of(replica) == expected, version
            assert version_counter(version) >= newest[0]
            newest[0] = version_counter(version)

    return check
