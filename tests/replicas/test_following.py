"""What a replica does where the application changes: programs, places of the changelog, resets; and its errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock import ConfigError, World
from penstock.errors import ChangelogError, IncompatibleStateError, StaleStoreError, StoreLockedError
from penstock.plugins.changelogs.storage import LocalStorage
from penstock.plugins.engine.program.preparation import prepare
from penstock.plugins.engine.program.saved_program import note_location
from penstock.plugins.engine.task.local_state.backends import OF_REPLICA, Backends
from penstock.plugins.logs.memory import MemoryLog
from penstock.plugins.state.copies import Replica, saved_tasks

from ..processes import Child
from .every_kind import STORES, Writer, application, content_of

ROWS = [("a", "1"), ("b", "2"), ("a", "3"), ("c", "")]
CHANGELOGS = pytest.mark.parametrize("changelog", ["directory:changes", "topic:"])


def made(tmp_path: Path, changelog: str, **settings: Any) -> tuple[Writer, Replica]:
    writer = Writer(application(tmp_path / "app", changelog, **settings), MemoryLog())
    writer.commit(ROWS)
    return writer, Replica(writer.application, "0_0", writer.log, tmp_path / "replica")


@CHANGELOGS
def test_a_task_opens_a_replica_as_its_own(tmp_path: Path, changelog: str) -> None:
    """Its layout and version are those of local state: nothing is restored."""
    writer, replica = made(tmp_path, changelog, store_backend="lmdb")
    with replica:
        assert replica.catch_up()
    writer.worker.close()
    there = application(tmp_path / "other", changelog, store_backend="lmdb", state_dir=str(tmp_path / "states"))
    if changelog.startswith("directory"):
        there = there.with_settings(changelog=f"directory:{tmp_path / 'app' / 'changes'}")
    (tmp_path / "states" / "app").mkdir(parents=True)
    (tmp_path / "replica").rename(tmp_path / "states" / "app" / "0_0")
    writer.application = there
    task = writer._new()
    report = task.run_batch({}, 0)
    assert report.restored == 0
    assert report.version in writer.contents
    task.close()


@pytest.mark.parametrize("backend", ["memory", "lmdb"])
def test_a_replica_shows_no_version_between_the_portions_in_which_it_is_rebuilt(tmp_path: Path, backend: str) -> None:
    writer, replica = made(tmp_path, "directory:changes?chunk_bytes=1", store_backend=backend)
    with replica:
        assert replica.catch_up()
        writer.commit(ROWS)
        last = writer.commit(ROWS)
        writer.snapshot_and_clean(snapshot=True)  # the copy is not on the way any more
        versions: list[str | None] = []
        assert replica.catch_up(lambda: versions.append(replica.version))
        assert len(versions) > 1 and set(versions[:-1]) == {None} and replica.version == last
    writer.worker.close()


@CHANGELOGS
def test_some_stores(tmp_path: Path, changelog: str) -> None:
    writer, _ = made(tmp_path, changelog)
    with Replica(writer.application, "0_0", writer.log, tmp_path / "some", stores=["plain", "windows"]) as replica:
        assert replica.catch_up()
        assert set(replica.layout) == {"plain", "windows"}
        version = writer.commit([("d", "4")])
        assert replica.behind() == 1
        assert replica.catch_up()
        assert replica.version == version
        expected = writer.contents[version]
        assert content_of(replica) == {store: expected[store] for store in ("plain", "windows")}
        with pytest.raises(ConfigError, match=r"has no store 'stamped'; it has: plain, windows"):
            replica.backend("stamped")


@CHANGELOGS
@pytest.mark.parametrize("commits", [False, True])
def test_a_copy_gets_the_stores_without_which_it_was_kept(tmp_path: Path, changelog: str, commits: bool) -> None:
    """It had their rows of nowhere, or of the time when it was last kept with them, and said that it had a version."""
    writer, other = made(tmp_path, changelog, store_backend="lmdb")
    other.close()
    for stores in (["plain"], ["plain", "windows"], ["windows"], None, ["plain"], ["windows", "lists"], None):
        version = writer.commit([("a", ""), ("d", "4")] if commits else [])
        with Replica(writer.application, "0_0", writer.log, tmp_path / "some", stores=stores) as replica:
            assert replica.catch_up()
            expected = writer.contents[version]
            assert replica.version == version
            assert content_of(replica) == {each: expected[each] for each in stores or expected}
    writer.worker.close()


@CHANGELOGS
def test_a_copy_that_ends_before_it_has_all_stores_lacks_them_again(tmp_path: Path, changelog: str) -> None:
    writer, other = made(tmp_path, changelog, store_backend="lmdb")
    other.close()
    place = tmp_path / "some"
    with Replica(writer.application, "0_0", writer.log, place, stores=["plain"]) as replica:
        assert replica.catch_up()
    with Replica(writer.application, "0_0", writer.log, place) as replica:
        assert replica.version is None, "it lacks stores"
    with Replica(writer.application, "0_0", writer.log, place) as replica:
        assert replica.version is None and replica.catch_up()
        assert content_of(replica) == writer.contents[str(replica.version)]
    with Replica(writer.application, "0_0", writer.log, place) as replica:
        assert replica.version is not None, "it goes on by itself"
    writer.worker.close()


@CHANGELOGS
def test_a_copy_of_another_incarnation_is_gone_before_the_note_says_otherwise(
    tmp_path: Path, changelog: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that ends in between leaves nothing that the next one takes for a copy of this incarnation."""
    writer, other = made(tmp_path, changelog, store_backend="lmdb")
    other.close()
    place = tmp_path / "some"
    with Replica(writer.application, "0_0", writer.log, place) as replica:
        assert replica.catch_up()
    (place / OF_REPLICA).write_text("another\nnull")

    def killed(backends: Backends) -> None:
        raise OSError("killed")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="killed"):
        patch.setattr(Backends, "destroy", killed)
        Replica(writer.application, "0_0", writer.log, place)
    with Replica(writer.application, "0_0", writer.log, place) as replica:
        assert replica.version is None, "it begins anew"
        assert replica.catch_up()
    writer.worker.close()


@CHANGELOGS
def test_it_follows_a_changed_program_and_back(tmp_path: Path, changelog: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that the program does not name any more is parked, and goes on being there; a new one comes."""
    writer, replica = made(tmp_path, changelog)
    with replica:
        replica.catch_up()
        before = list(STORES)
        for changed in (before[1:], before):
            monkeypatch.setattr("tests.replicas.every_kind.STORES", changed)
            monkeypatch.setattr("tests.replicas.every_kind.NAMES", {each.name for each in changed})
            writer.worker.close()
            writer.application = application(tmp_path / "app", changelog)
            writer.application = prepare(writer.application, writer.log).application
            writer.worker = writer._new()
            version = writer.commit([])
            assert replica.catch_up()
            assert replica.version == version
            assert content_of(replica) == writer.contents[version]


@CHANGELOGS
def test_a_reset_application_is_followed_from_its_start(tmp_path: Path, changelog: str) -> None:
    writer, replica = made(tmp_path, changelog)
    with replica:
        replica.catch_up()
        writer.worker.close()
        changes = writer.changelog()
        if changelog.startswith("directory"):
            changes.destroy()
        for topic in [each for each in writer.log.topics() if each.endswith("-changelog")]:
            writer.log.delete_topic(topic)
        writer.log.delete_commits("app")
        with pytest.raises(ConfigError, match="has no task '0_0' with stores"):
            replica.catch_up()
        writer.application = prepare(application(tmp_path / "app", changelog), writer.log).application
        assert replica.catch_up()
        assert replica.version is None
        writer.worker = writer._new()
        version = writer.commit([("z", "1")])
        assert replica.catch_up()
        assert replica.version == version
        assert content_of(replica) == writer.contents[version]


def test_it_follows_a_changelog_that_has_moved(tmp_path: Path) -> None:
    writer, replica = made(tmp_path, "directory:changes")
    with replica:
        replica.catch_up()
        (tmp_path / "app" / "changes").rename(tmp_path / "app" / "moved")
        writer.worker.close()
        writer.application = application(tmp_path / "app", "directory:moved")
        note_location(writer.application, writer.log, saved_tasks("app", writer.log)["0_0"].identity)
        writer.worker = writer._new()
        version = writer.commit([("d", "4")])
        replica._looked_at = -1e9  # as after ten seconds
        assert replica.catch_up()
        assert replica.version == version
        assert content_of(replica) == writer.contents[version]


def test_a_damaged_file_is_named_and_the_copy_stays(tmp_path: Path) -> None:
    writer, replica = made(tmp_path, "directory:changes")
    with replica:
        replica.catch_up()
        before = replica.version
        version = writer.commit([("d", "4")])
        [file] = (tmp_path / "app" / "changes" / "app" / "0_0").glob("*.delta")
        whole = file.read_bytes()
        file.write_bytes(whole[:-3])
        with pytest.raises(ChangelogError, match=file.name.replace(".", r"\.")):
            replica.catch_up()
        assert replica.version == before
        file.write_bytes(whole)
        assert replica.catch_up()
        assert replica.version == version


def test_another_changelog_is_named(tmp_path: Path) -> None:
    writer, _ = made(tmp_path, "directory:changes")
    other = writer.application.with_settings(changelog="directory:elsewhere")
    with (
        Replica(other, "0_0", writer.log, tmp_path / "other") as replica,
        pytest.raises(ChangelogError, match=r"noted its changelog as 'directory:.*changes'.*same setting 'changelog'"),
    ):
        replica.catch_up()


def test_a_lost_commit_is_noticed_and_the_copy_stays(tmp_path: Path) -> None:
    writer, replica = made(tmp_path, "directory:changes")
    with replica:
        replica.catch_up()
        before = replica.version
        del writer.log._commits["app", "0_0"]  # type: ignore[attr-defined]
        with pytest.raises(IncompatibleStateError, match=r"replica of task 0_0, at version .*no commit of the task"):
            replica.catch_up()
        assert replica.version == before


def test_unknown_tasks_and_stores_are_named(tmp_path: Path) -> None:
    writer, _ = made(tmp_path, "directory:changes")
    with pytest.raises(ConfigError, match=r"'app' has no task '1_0'.*did you mean '0_0'"):
        Replica(writer.application, "1_0", writer.log, tmp_path / "x")
    with pytest.raises(ConfigError, match=r"no store 'plan'; did you mean 'plain'"):
        Replica(writer.application, "0_0", writer.log, tmp_path / "x", stores=["plan"])
    with pytest.raises(ConfigError, match=r"'app' has no task '0_0'.*there are: none"):
        Replica(writer.application, "0_0", MemoryLog(), tmp_path / "x")


def test_another_thread_ends_it(tmp_path: Path) -> None:
    writer, replica = made(tmp_path, "directory:changes")
    with replica:
        with pytest.raises(StaleStoreError, match="the replica of task 0_0 was closed"):
            replica.catch_up(replica.opening.end)
        assert replica.catch_up()
        assert replica.version in writer.contents


def test_its_world_is_what_it_is_given(tmp_path: Path) -> None:
    times = iter(range(1000))
    writer, _ = made(tmp_path, "directory:changes")
    world = World(seconds=lambda: float(next(times)))
    with Replica(writer.application, "0_0", writer.log, tmp_path / "x", world=world) as replica:
        replica.catch_up()
    assert next(times) > 1


def test_two_processes_do_not_share_a_directory(tmp_path: Path) -> None:
    writer, replica = made(tmp_path, "directory:changes")
    replica.close()
    holding = (
        "import sys; from pathlib import Path; from penstock import World\n"
        "from penstock.plugins.engine.task.local_state.directories import SoleUse\n"
        "use = SoleUse(Path(sys.argv[1]), World(), 0); print('open', flush=True); sys.stdin.read()"
    )
    with Child("-c", holding, tmp_path / "replica") as other:
        assert other.line() == "open"
        with pytest.raises(StoreLockedError, match=rf"replica: process {other.pid} has it open"):
            Replica(writer.application, "0_0", writer.log, tmp_path / "replica", lock_seconds=0)
        other.communicate()
    with Replica(writer.application, "0_0", writer.log, tmp_path / "replica") as replica:
        assert replica.catch_up()


def test_following_reads_what_the_task_has_written_since(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the files are listed, nor is their beginning read again."""
    writer, replica = made(tmp_path, "directory:changes")
    with replica:
        assert replica.catch_up()
        version = ""
        for number in range(5):
            version = writer.commit([("d", str(number))])
        monkeypatch.setattr(LocalStorage, "files", lambda storage: pytest.fail("the files are listed"))
        assert replica.catch_up()
        monkeypatch.undo()
        assert replica.version == version
        assert content_of(replica) == writer.contents[version]
