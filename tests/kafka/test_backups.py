"""A backup on a real broker: beside open transactions, and restored where another application id begins."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Event, Thread

import pytest

from penstock import Log, StoreError
from penstock.plugins.engine.task.locations import open_log, read_up_to
from penstock.plugins.state.transfer.backups import back_up, plan_restore, restore_backup
from penstock.plugins.testing.kafka_broker import KafkaBroker
from penstock.record import OutputBatch, TopicPartition

from ..backups.counting import Tasks, counting, expected, send
from ..rotation import of_today
from ..waiting import wait_until
from .names import fresh_name

_PARTITIONS, _LETTERS = 4, "abcdefghijklmnopqrstuvwxyz"


@pytest.mark.broker
@pytest.mark.parametrize("changelog", of_today(["directory:changes", "topic:"], 2))
def test_another_application_continues_from_a_backup(broker: KafkaBroker, tmp_path: Path, changelog: str) -> None:
    """What waits in the repartition topic goes along; while a transaction is open there, no moment is one."""
    words, log_name = fresh_name("words"), f"kafka:{broker.bootstrap}"
    application = counting(tmp_path, fresh_name("app"), log_name, words, changelog=changelog)
    place = str(tmp_path / "backups")
    first = [("ann", "tea"), ("bob", "rum"), ("ann", "gin")]
    with closing(open_log(application.settings)) as log:
        tasks = Tasks(application, log)
        send(log, first, words)
        tasks.finish()
        send(log, more := [("bob", "tea"), ("cid", "ale")], words)
        tasks.process("0_0")
        tasks.process("0_1")
        topic = f"{application.id}-by-word-repartition"
        partition = TopicPartition(topic, 0)
        with closing(log.open_committer(fresh_name("other"), "0_0", [partition])) as committer:
            committer.send([OutputBatch(topic, [b"x"], [b"x"], [1], None, [(0,)])])
            with pytest.raises(StoreError, match="there was no moment without a commit or an open transaction"):
                back_up(application, log, place, patience_seconds=0.5)
        made = back_up(application, log, place)
        assert sorted(made.whole) == ["0_0", "0_1", "1_0", "1_1"]
        send(log, last := [("dan", "tea")], words)
        tasks.finish()
        tasks.close()
        copy = counting(tmp_path / "elsewhere", fresh_name("copy"), log_name, words, changelog=changelog)
        restore_backup(copy, log, plan_restore(copy, log, place, of=application.id))
        copies = Tasks(copy, log)
        copies.finish()
        copies.close()
        assert copies.content(tmp_path / "content") == expected(first + more + last)


@pytest.mark.broker
@pytest.mark.parametrize("changelog", of_today(["directory:changes", "topic:"], 2))
def test_beside_an_application_that_always_has_open_transactions(
    broker: KafkaBroker, tmp_path: Path, changelog: str
) -> None:
    """Its tasks rest for a moment, and go on. What continues from the backup has processed each record once.

    So has the output: what the application wrote up to the ends that the backup has, and what the copy wrote.
    """
    words, log_name = fresh_name("words"), f"kafka:{broker.bootstrap}"
    given = {"changelog": changelog, "commit_interval": None, "engine": "embedded"}
    application = counting(tmp_path, fresh_name("app"), log_name, words, **given)
    with closing(open_log(application.settings)) as log:
        for topic in (words, f"{words}-totals"):
            log.create_topic(topic, _PARTITIONS)
        with application.start("continuous") as running, _load(log, words) as sent:
            wait_until(lambda: _is_counting(log, words), "the application counts")
            made = back_up(application, log, str(tmp_path / "backups"), patience_seconds=60)
            before = len(sent)
            wait_until(lambda: len(sent) > before + 250, "the application goes on")
            wait_until(lambda: running.state == "running", "no task is being opened again")
        assert made.backup.outputs and all(commit for commit in made.backup.commits.values())
        copy = counting(tmp_path / "elsewhere", fresh_name("copy"), log_name, words, changelog=changelog)
        restore_backup(copy, log, plan_restore(copy, log, str(tmp_path / "backups"), of=application.id))
        ends = log.end_offsets(list(made.backup.outputs))
        copies = Tasks(copy, log)
        copies.finish()
        copies.close()
        assert copies.content(tmp_path / "content") == expected(sent)
        assert len(sent) == sum(_records(log, each, 0, at) for each, at in made.backup.outputs.items()) + sum(
            _records(log, each, at, log.end_offsets([each])[each]) for each, at in ends.items()
        )


def _is_counting(log: Log, words: str) -> bool:
    partitions = [TopicPartition(f"{words}-totals", number) for number in range(_PARTITIONS)]
    return all(end > 20 for end in log.end_offsets(partitions).values())


def _records(log: Log, partition: TopicPartition, start: int, end: int) -> int:
    return sum(len(batch) for batch in read_up_to(log, partition, start, end))


@contextmanager
def _load(log: Log, topic: str) -> Iterator[list[tuple[str, str]]]:
    """Send records all the time while the block runs; what is sent is in the list."""
    sent: list[tuple[str, str]] = []
    ended, choice = Event(), random.Random(1)

    def send_all() -> None:
        while not ended.wait(0.02):
            some = [(choice.choice(_LETTERS), choice.choice(_LETTERS)) for _ in range(10)]
            send(log, some, topic)
            sent.extend(some)

    thread = Thread(target=send_all)
    thread.start()
    try:
        yield sent
    finally:
        ended.set()
        thread.join()
