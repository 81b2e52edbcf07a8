"""Two processes of one machine restore the same copy at once: one of them was frozen, and has gone on."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock import StaleStoreError, World
from penstock.changelog import RESTORING, Restore, TaskChangelog
from penstock.plugins.engine.task.local_state.backends import Backends, Coverage
from penstock.program.layouts import Layouts
from penstock.store import Changes
from penstock.store.kept_store import KeptStore
from penstock.stores.memory import MemoryBackend

from ..processes import succeeds_in_a_fork

PARTS = 3
VERSION = "000000000007-0a0b0c0d"
STEPS = range(PARTS + 1)
"""Before the plan is made, and before each part is written."""


class Parts(TaskChangelog):
    """A changelog with a snapshot in parts; `between` is called with the number of each step."""

    def __init__(self, between: Callable[[int], None]) -> None:
        self._between = between

    def restore(self, target: str, have: str | None) -> Restore:
        self._between(0)
        return Restore(None, self._parts(target))

    def _parts(self, target: str) -> Iterator[tuple[Changes, str]]:
        for part in range(PARTS):
            self._between(part + 1)
            yield {"kept": [(b"%d" % part, b"v")]}, target if part == PARTS - 1 else f"{RESTORING}{target}:{part}"

    def close(self) -> None: ...


def restored(
    directory: Path, kind: str, between: Callable[[int], None] = lambda step: None, version: str = VERSION
) -> int:
    """Restore the copy in a directory as a task does that opens; return how many rows it then has."""
    layouts = Layouts({"kept": KeptStore(kind, logged=True, timestamped=False, expires=False)})
    backends = Backends(directory, layouts, Parts(between), "application 'a', task 0_0", "0_0", World())
    try:
        backends.open(version, Coverage(layouts, version))
        assert backends.are_at(version)
        return sum(1 for _ in backends.of("kept").range("kept"))
    finally:
        backends.close()


def in_another_process(directory: Path, kind: str) -> None:
    assert succeeds_in_a_fork(lambda: restored(directory, kind) == PARTS)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("kind", ["lmdb", "memory"])
def test_of_two_that_restore_one_copy_at_most_one_goes_on(tmp_path: Path, kind: str, step: int) -> None:
    """The other one restores all of it while the first rests before a step. No copy has parts of both."""

    def other(at: int) -> None:
        if at == step:
            restored(tmp_path, kind) if kind == "memory" else in_another_process(tmp_path, kind)

    with pytest.raises(StaleStoreError):
        restored(tmp_path, kind, other)
    assert restored(tmp_path, kind, lambda _: pytest.fail("the copy of the other one is whole")) == PARTS


@pytest.mark.parametrize("kind", ["lmdb", "memory"])
def test_an_old_copy_that_another_process_has_replaced_is_not_deleted(tmp_path: Path, kind: str) -> None:
    """The first found a copy that it cannot use, and rests; meanwhile the other one restores it."""
    restored(tmp_path, kind, version="000000000005-0a0b0c0d")

    def other(at: int) -> None:
        if at == 0:
            restored(tmp_path, kind) if kind == "memory" else in_another_process(tmp_path, kind)

    with pytest.raises(StaleStoreError):
        restored(tmp_path, kind, other)
    assert restored(tmp_path, kind, lambda _: pytest.fail("the copy of the other one is whole")) == PARTS


def test_the_parts_of_two_that_restore_one_copy_are_not_mixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one deletes the parts of the first, writes one, and is killed. This backend deletes rows in place."""

    def destroy(backend: MemoryBackend) -> None:
        contents = backend._open()
        for table in contents.tables.values():
            table.values.clear()
        contents.version = None
        backend.close()

    def killed(at: int) -> None:
        if at == 2:
            raise KeyboardInterrupt

    def other(at: int) -> None:
        if at == 3:
            with pytest.raises(KeyboardInterrupt):
                restored(tmp_path, "memory", killed)

    monkeypatch.setattr(MemoryBackend, "destroy", destroy)
    with pytest.raises(StaleStoreError):
        restored(tmp_path, "memory", other)
    assert restored(tmp_path, "memory") == PARTS


def test_a_copy_in_memory_that_another_task_has_deleted_stays_whole_for_its_reader(tmp_path: Path) -> None:
    """It finds out when it writes: a task checks its version before it commits what it has read."""
    first, second = (MemoryBackend(tmp_path, ["kept"]) for _ in range(2))
    first.write({"kept": [(b"key", b"value")]}, None, VERSION)
    second.destroy()
    third = MemoryBackend(tmp_path, ["kept"])
    third.write({}, None, VERSION)
    assert (first.get("kept", b"key"), first.version()) == (b"value", None)
    for expected in (None, VERSION):
        with pytest.raises(StaleStoreError):
            first.write({}, expected, "next")
    assert (third.get("kept", b"key"), third.version()) == (None, VERSION)
