"""A table whose topic is its changelog, on a real broker, through kill -9 and a lost disk."""

from __future__ import annotations

from pathlib import Path

from penstock.plugins.engine.task.locations import open_log
from penstock.plugins.testing.contracts.log_tests import read
from penstock.plugins.testing.kafka_broker import KafkaBroker
from penstock.record import OutputBatch, TopicPartition

from ..processes import python
from ..waiting import wait_until
from .names import fresh_name
from .table_driver import application

PAIRS, KEYS = 240, 5


def test_it_is_exact_through_kills(broker: KafkaBroker, tmp_path: Path) -> None:
    name = fresh_name("table")
    log = open_log(application(broker.bootstrap, name, str(tmp_path)).settings)
    for topic in ("in", "rows", "out"):
        log.create_topic(f"{name}-{topic}", 1, {"cleanup.policy": "compact"} if topic == "rows" else None)
    numbers = range(PAIRS)
    rows: list[bytes | None] = [f"k{number % KEYS}".encode() for number in numbers]
    looked_up: list[bytes | None] = [f"k{(number + 2) % KEYS}".encode() for number in numbers]
    values: list[bytes | None] = [str(number).encode() for number in numbers]
    log.append(OutputBatch(f"{name}-rows", rows, values, [2 * number for number in numbers]))
    log.append(OutputBatch(f"{name}-in", looked_up, values, [2 * number + 1 for number in numbers]))
    out = TopicPartition(f"{name}-out", 0)

    def killed_after(least: int, host: str) -> None:
        with python("tests.kafka.table_driver", broker.bootstrap, name, tmp_path / host) as process:
            wait_until(lambda: log.end_offsets([out])[out] >= least or process.poll() is not None, "joins", 120)
            assert process.poll() is None, process.communicate()[1]

    killed_after(10, "one")
    killed_after(60, "another")
    killed_after(120, "one")
    with python("tests.kafka.table_driver", broker.bootstrap, name, tmp_path / "a third") as process:
        _, errors = process.communicate(timeout=180)
    assert process.returncode == 0, errors
    expected = []
    for number in numbers:
        row = max((each for each in range(number + 1) if each % KEYS == (number + 2) % KEYS), default=None)
        expected.append(f"{number}:{row}".encode())
    assert [each.value for each in read(log, out)] == expected
    assert not any("changelog" in topic and topic.startswith(name) for topic in log.topics())
    log.close()
