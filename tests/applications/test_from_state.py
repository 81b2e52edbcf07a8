"""Commits that the log lost: what the notes and the changelog prove is missed, what never was committed starts, and
nothing repeats unasked."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgpack import Packer

from penstock import ConfigError, IncompatibleStateError, Log, TopicPartition, Topology, key_value_store
from penstock.plugins.changelogs.directory import DirectoryChangelog
from penstock.plugins.engine.program import from_state as engine
from penstock.plugins.engine.program.from_state import go_on, plan_from_state
from penstock.plugins.engine.program.preparation import prepare
from penstock.plugins.engine.program.reset import Destination, to_earliest, to_latest, to_offsets

from ..bad_input.world import ORDERS, Contents, MakeWorld, Total, World, says, totals
from ..lost_commits import lose_commits
from ..processes import opened_workers


def run(world: World) -> None:
    """Run as a driver does, which notes what is committed."""
    world.run()
    with world.open() as log:
        prepare(world.application, log)


def lose(world: World) -> None:
    with world.open() as log:
        lose_commits(log, "shop")


def recover(world: World, destination: Destination | None = None, topics: Sequence[str] | None = None) -> Any:
    with world.open() as log:
        plan = plan_from_state(world.application, log, destination, topics)
        go_on(world.application, log, plan, lambda: None)
        return plan


def sold(contents: Contents) -> list[tuple[bytes | None, bytes | None]]:
    return [(key, value) for (topic, _), rows in contents.topics.items() if topic != "orders" for key, value, _ in rows]


def remake(log: Log, topic: str, partitions: int = 2) -> None:
    log.delete_topic(topic)
    log.create_topic(topic, partitions)


# ---------------------------------------------------------------- refused


def test_the_notes_miss_every_task(world: World) -> None:
    run(world)
    before = world.contents()
    lose(world)
    with pytest.raises(IncompatibleStateError) as caught:
        world.run()
    says(caught.value, "'shop' had committed positions that are gone: task 0_0 in orders-0; task 0_1 in orders-1: ")
    says(caught.value, "offsets.retention.minutes", "`penstock reset --from-state --dry-run`", "`penstock reset`")
    recover(world)
    world.run()
    after = world.contents()
    assert (after.stores, after.positions) == (before.stores, before.positions)
    assert len(sold(after)) == len(sold(before)) + 2, "the newest commit of each task is not proven"


def test_stateless_tasks_are_missed(make_world: MakeWorld) -> None:
    world = make_world(Topology().add_source("orders", "orders").add_sink("out", "copies", "orders"))
    world.produce("orders", *ORDERS)
    run(world)
    lose(world)
    with pytest.raises(IncompatibleStateError, match="task 0_0 in orders-0; task 0_1 in orders-1"):
        world.run()
    with pytest.raises(IncompatibleStateError) as caught:
        recover(world)
    says(caught.value, "task 0_0: it has no stores", "task 0_1: it has no stores", "Nothing was changed", "--to-latest")
    with pytest.raises(ConfigError, match="no position is lost there; lost are those in: orders:0, orders:1"):
        recover(world, to_offsets({TopicPartition("elsewhere", 0): 1}))
    copied = len(sold(world_contents := contents_after(world, to_latest)))
    assert copied == len(ORDERS), world_contents


def contents_after(world: World, destination: Destination) -> Contents:
    recover(world, destination)
    return world.contents()


def test_the_changelog_alone_misses_a_task(world: World) -> None:
    """The notes are gone, too, as on another cluster."""
    world.run()
    with world.open() as log:
        log.delete_commits("shop")
    with pytest.raises(IncompatibleStateError) as caught:
        world.run()
    says(
        caught.value,
        "'shop', task 0_0: the log has no commit of it, but its changelog proves one (state version 000000000004-",
    )
    says(caught.value, "`penstock reset --from-state --dry-run`")


def test_a_first_commit_that_failed_proves_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A delta without a successor is an orphan of a process that was killed before its first commit."""
    folder = world.changelog / "shop" / "0_0"
    with monkeypatch.context() as patch:
        patch.setattr("penstock.plugins.logs.local.committer.LocalCommitter.commit", None)
        for _ in range(2):
            with pytest.raises(TypeError):
                world.run()
    assert len(list(folder.glob("*.-.*.delta"))) == 2
    world.run()
    assert world.contents().stores["0_0", "totals"]


@pytest.mark.parametrize("noted", [True, False])
def test_a_topic_that_was_deleted_and_made_again(world: World, noted: bool) -> None:
    """The only source topic, so that a log which keeps positions by topic has none left of the task."""
    (run if noted else World.run)(world)
    before = world.contents().stores
    with world.open() as log:
        remake(log, "orders")
    with pytest.raises(IncompatibleStateError, match="0_0"):
        world.run()
    with pytest.raises(IncompatibleStateError) as caught:
        recover(world)
    if noted:
        says(caught.value, "task 0_0: orders-0 has offsets 0 to 0, and position 4 is proven", "deleted and made again")
        with pytest.raises(
            IncompatibleStateError, match="task 0_1: the log has its commit .* not its positions: orders-1 were"
        ):
            recover(world, to_earliest)
        recover(world, to_earliest, ["orders"])
        assert world.contents().stores == before
        world.produce("orders", ("ann", "1"), ("bob", "1"))
        world.run()
        assert {key: value for rows in world.contents().stores.values() for key, value in rows} == {
            "ann": 17, "bob": 8, "dan": 1,
        }  # fmt: skip


@pytest.mark.parametrize("changelog", ["directory:changelog", "topic:"])
def test_one_of_two_topics_was_deleted_and_made_again(make_world: MakeWorld, changelog: str) -> None:
    """The task keeps its commit, so its state stays whatever changelog that is in."""
    world = make_world(two(), changelog=changelog)
    world.produce("orders", *ORDERS)
    world.produce("more", ("ann", "1"))
    run(world)
    with world.open() as log:
        remake(log, "more")
    world.produce("more", ("ann", "100"))
    with pytest.raises(IncompatibleStateError, match="more-0; .*reset --from-state"):
        world.run()
    with pytest.raises(IncompatibleStateError, match="its positions in more-0 are gone and others are not"):
        recover(world)
    recover(world, to_earliest)
    world.run()
    assert world.contents().stores["0_0", "totals"][0] == ("ann", 117)


def two() -> Topology:
    return (
        Topology()
        .add_source("orders", "orders")
        .add_source("more", "more")
        .add_processor("total", Total, ["orders", "more"], stores=[key_value_store("totals")])
        .add_sink("totals-out", "totals-by-customer", "total")
    )


# ---------------------------------------------------------------- topics that are others now


@pytest.mark.parametrize(("policy", "total"), [("earliest", 19), ("latest", 18)])
@pytest.mark.parametrize("program", [totals, two])
def test_a_setting_says_where_a_new_topic_is_read_from(
    make_world: MakeWorld, program: Callable[[], Topology], policy: str, total: int
) -> None:
    """With the state of before, whether the task has another topic or not."""
    world = make_world(program())
    world.produce("orders", *ORDERS)
    run(world)
    with world.open() as log:
        remake(log, "orders")
    world.produce("orders", ("ann", "1"))
    with pytest.raises(IncompatibleStateError, match="topic 'orders' was deleted and made again.*offset_out_of_range"):
        world.run()
    world.change(offset_out_of_range=policy)
    world.run()
    world.change(offset_out_of_range="fail")
    world.produce("orders", ("ann", "2"))
    world.run()
    assert world.contents().stores["0_0", "totals"][0] == ("ann", total)


@pytest.mark.parametrize(("policy", "copied"), [("earliest", [b"3"]), ("latest", [])])
def test_a_setting_says_where_a_stateless_task_reads_a_new_topic_from(
    make_world: MakeWorld, policy: str, copied: list[bytes]
) -> None:
    world = make_world(Topology().add_source("orders", "orders").add_sink("out", "copies", "orders"))
    world.produce("orders", ("ann", "1"), ("ann", "2"))
    run(world)
    with world.open() as log:
        remake(log, "orders")
    world.produce("orders", ("ann", "3"))
    world.change(offset_out_of_range=policy)
    world.run()
    assert [value for _, value in sold(world.contents())] == [b"1", b"2", *copied]


def test_positions_that_are_lost_of_the_same_topic_stay_refused(make_world: MakeWorld) -> None:
    """The setting is about topics that are others, and records that are gone."""
    world = make_world(offset_out_of_range="earliest")
    world.produce("orders", *ORDERS)
    run(world)
    lose(world)
    with pytest.raises(IncompatibleStateError, match="task 0_0 in orders-0.*offsets.retention.minutes"):
        world.run()


def test_a_note_without_ids_says_nothing_of_topics(make_world: MakeWorld) -> None:
    """As of a broker without ids: its positions are as any that are lost; the next start notes the ids."""
    world = make_world(offset_out_of_range="earliest")
    world.produce("orders", *ORDERS)
    run(world)
    with world.open() as log:
        key = f"committed-ids-{json.loads(log.get_meta('shop', 'program') or b'')['identity']}"
        assert set(json.loads(log.get_meta("shop", key) or b"")) == {"orders"}
        log.put_meta("shop", key, b"{}")
        remake(log, "orders")
    with pytest.raises(IncompatibleStateError, match="task 0_0 in orders-0.*offsets.retention.minutes"):
        world.run()
    recover(world, to_earliest, ["orders"])
    world.run()
    with world.open() as log:
        remake(log, "orders")
    world.run()


def test_a_topic_that_was_made_again_under_the_application_is_noted(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Positions in the new one that are lost later are no others'."""
    monkeypatch.setattr("penstock.plugins.engine.program.committed._IDS_SECONDS", 0.0)
    world.change(offset_out_of_range="earliest")
    with world.open() as log, opened_workers(world.application, log) as workers:
        prepared = prepare(world.application, log)
        remake(log, "orders")
        for worker in workers:
            report = worker.run_batch(log.end_offsets(worker.partitions), 0)
            prepared.committed.add(report.positions)
    lose(world)
    with pytest.raises(IncompatibleStateError, match="task 0_0 in orders-0.*offsets.retention.minutes"):
        world.run()


# ---------------------------------------------------------------- started all the same


def test_what_never_had_a_commit_starts(world: World) -> None:
    with world.open() as log:
        prepare(world.application, log)
    run(world)
    with world.workers() as (log, workers):
        assert len(workers) == 2
    assert recover(world).recoveries == ()
    world.run()


def test_a_topic_that_is_read_again_after_a_while_starts(make_world: MakeWorld) -> None:
    """While no task reads it, its positions are not missed."""
    world = make_world(two())
    world.produce("orders", *ORDERS)
    world.produce("more", ("ann", "1"))
    run(world)
    world.change(totals())
    world.produce("orders", ("ann", "1"))
    run(world)
    with world.open() as log:
        remake(log, "more")
    world.change(two())
    world.produce("more", ("ann", "5"))
    world.run()
    assert world.contents().stores["0_0", "totals"][0] == ("ann", 23)


# ---------------------------------------------------------------- going on


def test_the_newest_commit_proves_itself_by_a_snapshot(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    defaults = DirectoryChangelog.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "snapshot_floor_bytes", 1)
    run(world)
    before = world.contents()
    lose(world)
    plan = recover(world)
    assert {str(each.task): dict(each.then) for each in plan.recoveries}["0_0"] == {TopicPartition("orders", 0): 5}
    assert world.contents() == before


def test_an_orphan_is_not_taken_for_a_commit(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    run(world)
    world.produce("orders", ("ann", "1000"))
    with monkeypatch.context() as patch:
        patch.setattr("penstock.plugins.logs.local.committer.LocalCommitter.commit", None)
        with pytest.raises(TypeError):
            world.run()
    lose(world)
    recover(world)
    # The orphan names the commit that it follows, so that one is proven, to the last record.
    world.run()
    contents = world.contents()
    assert contents.stores["0_0", "totals"][0] == ("ann", 1016)
    assert [value for _, value in sold(contents)].count(b"1016") == 1
    assert len(sold(contents)) == len(ORDERS) + 1 + 1, "the newest commit of 0_1 only is not proven"


def test_a_task_that_has_changed_nothing_goes_on_from_its_beginning(world: World) -> None:
    with world.open() as log:
        remake(log, "orders")
    run(world)
    lose(world)
    with pytest.raises(IncompatibleStateError, match="task 0_1 in orders-1"):
        world.run()
    recover(world)
    world.produce("orders", *ORDERS)
    world.run()
    assert world.contents().stores["0_0", "totals"] == [("ann", 16), ("bob", 7)]


def test_files_without_commits_prove_no_position(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    class Older:
        def pack(self, value: Any) -> Any:
            if isinstance(value, dict):
                value.pop("commit")
            return Packer().pack(value)

    with monkeypatch.context() as patch:
        patch.setattr("penstock.plugins.changelogs.file_format.Packer", Older)
        run(world)
    before = world.contents()
    lose(world)
    with pytest.raises(IncompatibleStateError, match="task 0_0: its changelog keeps no positions"):
        recover(world)
    recover(world, to_earliest)
    world.run()
    assert world.contents().stores == before.stores


@pytest.mark.usefixtures("a_file_each")
def test_a_changelog_with_a_gap_is_refused(world: World) -> None:
    run(world)
    lose(world)
    folder = world.changelog / "shop" / "0_0"
    sorted(folder.iterdir())[0].unlink()
    with pytest.raises(IncompatibleStateError, match="task 0_0: changelog at .* no way to version"):
        recover(world)


def test_a_log_that_was_set_back_goes_on_from_what_it_has(world: World, tmp_path: Path) -> None:
    """Only Spark's checkpoint knows of later commits, and it goes."""
    run(world)
    shutil.copytree(world.log, tmp_path / "earlier")
    world.produce("orders", ("ann", "1"), ("ann", "1"))
    run(world)
    shutil.rmtree(world.log)
    shutil.copytree(tmp_path / "earlier", world.log)
    world.produce("orders", ("ann", "1"), ("ann", "1"))
    assert recover(world).recoveries == ()
    world.run()
    assert world.contents().stores["0_0", "totals"][0] == ("ann", 18)


def test_a_changelog_in_the_log_has_no_positions(make_world: MakeWorld) -> None:
    world = make_world(changelog="topic:")
    world.produce("orders", *ORDERS)
    run(world)
    lose(world)
    with pytest.raises(IncompatibleStateError) as caught:
        world.run()
    says(caught.value, "task 0_0 in orders-0", "its state cannot be kept, for a changelog that lives in the log keeps")
    assert "--from-state" not in str(caught.value)
    for destination in (None, to_earliest):
        with pytest.raises(IncompatibleStateError, match="the newest value of each key and no positions"):
            recover(world, destination)


def test_a_recovery_can_be_repeated_after_a_kill(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    run(world)
    before = world.contents()
    lose(world)
    original, left = engine._commit, [1]

    def fail(*arguments: Any) -> None:
        original(*arguments)
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(engine, "_commit", fail)
        with pytest.raises(KeyboardInterrupt):
            recover(world)
    with pytest.raises(IncompatibleStateError, match="gone: task 0_1 in orders-1: "):
        world.run()
    assert [str(each.task) for each in recover(world).recoveries] == ["0_1"]
    world.run()
    assert world.contents().stores == before.stores
