"""A backup on a real broker: beside open transactions, and restored where another application id begins."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from penstock import StoreError
from penstock.plugins.backups import back_up, plan_restore, restore_backup
from penstock.plugins.runtime.locations import open_log
from penstock.plugins.testing.kafka_broker import KafkaBroker
from penstock.record import OutputBatch, TopicPartition

from ..backups.counting import Tasks, counting, expected, send
from ..rotation import of_today
from .names import fresh_name


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
