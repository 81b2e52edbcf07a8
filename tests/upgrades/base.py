"""Makes the archive of saved state, at the commit whose state it has: `python -m tests.upgrades.base`.

`python -m tests.upgrades.base DIRECTORY [BOOTSTRAP]` continues from the state in a directory, which another version may
have written, and compares with what is in the archive.
"""

from __future__ import annotations

import json
import shutil
import sys
import tarfile
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

from penstock.plugins.logs.kafka.log import KafkaLog
from penstock.plugins.testing.kafka_broker import KafkaBroker

from .kafka_dump import dump
from .saved import ARCHIVE, PREFIX, Saved, Verbs, unpack

HERE = Path(__file__).parent


def make(directory: Path) -> None:
    """Make everything that is in the archive."""
    for name, kind in (("local", Saved), ("verbs", Verbs)):
        with closing(kind(directory / name)) as made:
            made.make()
        copy = directory / f"{name}-then"
        shutil.copytree(directory / name, copy)
        with closing(kind(copy)) as made:
            expected = made.go_on()
        shutil.rmtree(copy)
        (directory / name / "expected.json").write_text(json.dumps(expected, indent=1))
    with KafkaBroker() as broker:
        log = KafkaLog(broker.bootstrap), f"kafka:{broker.bootstrap}"
        with closing(Saved(directory / "kafka", log)) as made:
            made.make()
            (directory / "kafka.json").write_text(json.dumps(dump(broker.bootstrap, PREFIX), indent=1))
            shutil.copytree(directory / "kafka", directory / "kafka-copy")
            expected = made.go_on()
        shutil.rmtree(directory / "kafka")
        (directory / "kafka-copy").rename(directory / "kafka")
        (directory / "kafka" / "expected.json").write_text(json.dumps(expected, indent=1))
    shutil.copytree(HERE, directory / "upgrades", ignore=shutil.ignore_patterns("__pycache__", "test_*", "*.xz"))


def check(directory: Path, bootstrap: str | None = None) -> None:
    """Continue from what another version wrote. Raises AssertionError for other results than are in the archive."""
    kinds = [("kafka", Saved)] if bootstrap else [("local", Saved), ("verbs", Verbs)]
    with tempfile.TemporaryDirectory() as temporary:
        archived = unpack(Path(temporary))
        for name, kind in kinds:
            log = None if bootstrap is None else (KafkaLog(bootstrap), f"kafka:{bootstrap}")
            with closing(kind(directory / name, log)) as made:
                found = made.go_on()
            expected = json.loads((archived / name / "expected.json").read_text())
            assert found.keys() == expected.keys()
            for each in expected:
                assert comparable(found[each]) == comparable(expected[each]), f"{name}: {each!r} goes on in another way"
                print(f"{name}: {each} goes on")


def comparable(found: Any) -> Any:
    """Return the results of a continued application as data for JSON, with its outputs sorted.

    A join by foreign key answers through topics, so on Kafka the batch of an answer varies.
    """
    data = json.loads(json.dumps(found))
    return data if isinstance(data, list) else data | {"outputs": sorted(data["outputs"])}


if __name__ == "__main__" and len(sys.argv) > 1:
    check(Path(sys.argv[1]), *sys.argv[2:])
elif __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        make(Path(temporary))
        with tarfile.open(ARCHIVE, "w:xz") as archive:
            archive.add(temporary, arcname=".", filter=lambda each: None if each.name.endswith("lock") else each)
