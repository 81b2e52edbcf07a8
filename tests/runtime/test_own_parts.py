"""A serde and a kind of store of a script's own: without a package, on other hosts, and after a restore."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock import StoreSpec, Topology
from penstock.errors import TopologyError
from penstock.plugins.engine.task.shipping import pack
from penstock.plugins.logs.memory import MemoryLog
from penstock.plugins.testing.contracts.log_tests import read
from penstock.record import OutputBatch, TopicPartition

from ..processes import opened_workers
from .own_parts import Count, Words, application


def test_they_work_where_their_module_is_not(tmp_path: Path) -> None:
    (tmp_path / "packed").write_bytes(pack(application()))
    program = (
        "import pickle, pathlib\n"
        "from penstock.plugins.testing import TopologyTestDriver\n"
        "application = pickle.loads(pathlib.Path('packed').read_bytes())\n"
        "with TopologyTestDriver(application, reopen_tasks=True) as driver:\n"
        "    driver.pipe('in', 'k', ['a', 'b', 'a'])\n"
        "    print(driver.read('out').value, list(driver.store('bag')))\n"
    )
    answer = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert answer.stdout == "['a=0', 'b=0', 'a=1'] [('a', 1), ('b', 0)]\n", answer.stderr


@pytest.mark.parametrize("changelog", ["directory:changelog", "topic:"])
def test_their_rows_are_restored(changelog: str, tmp_path: Path) -> None:
    log = MemoryLog()
    for topic in ("in", "out"):
        log.create_topic(topic, 1)
    for expected in ("a=0 b=0 a=1", "a=2 b=1 a=3", "a=4 b=2 a=5"):
        log.append(OutputBatch("in", [b"k"], [b"a b a"], [1], None, [[0]]))
        started = application(changelog).with_settings(data_dir=str(tmp_path))
        with opened_workers(started, log) as [worker]:
            worker.run_batch(log.end_offsets(worker.partitions), 0)
        assert read(log, TopicPartition("out", 0))[-1].value == expected.encode()
        shutil.rmtree(tmp_path / "state")  # the next start is on another host
    log.close()


def test_a_spec_without_a_kind_says_what_to_write() -> None:
    class Nothing(StoreSpec):
        pass

    with pytest.raises(TopologyError, match=r"class Nothing sets no `kind`.*override `build\(self, bytes_store, cont"):
        Topology().add_source("in", "in").add_processor("count", Count, "in", stores=[Nothing("bag")])


@pytest.mark.parametrize(
    ("given", "advice"), [(Words, r"make one, Words\(\)"), (int, "name it, 'int'"), (Count, r"write of\(Count\)")]
)
def test_a_class_in_place_of_a_serde_says_what_to_write(given: Any, advice: str) -> None:
    with pytest.raises(TopologyError, match=rf"source 'in': value_serde is a Serde .*: {advice}"):
        Topology().add_source("in", "in", value_serde=given)
