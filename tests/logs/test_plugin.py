"""The logs come in by the same door as anybody's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from penstock.hooks import registry
from penstock.plugins.logs.local import LocalLog
from penstock.plugins.logs.memory import MemoryLog


def test_both_are_found_by_name(tmp_path: Path) -> None:
    assert registry().load("log", "memory") is MemoryLog
    log = registry().load("log", "local")(str(tmp_path / "log"), {})
    assert isinstance(log, LocalLog)
    log.close()


def test_a_memory_log_needs_neither_lmdb_nor_numpy() -> None:
    """The test driver makes one for each test."""
    program = (
        "import sys\n"
        "from penstock.plugins.logs.memory import MemoryLog\n"
        "from penstock.record import OutputBatch, TopicPartition\n"
        "log = MemoryLog()\n"
        "log.create_topic('t', 1)\n"
        "log.append(OutputBatch('t', [b'k'] * 500, [b'v'] * 500, [0] * 500))\n"
        "assert log.end_offsets([TopicPartition('t', 0)]) == {('t', 0): 500}\n"
        "print(sorted({'numpy', 'lmdb', 'msgpack'} & set(sys.modules)))\n"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"
