"""A resharded application with Parquet files: it is drained first, and each record is in one file, once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock import Application, IncompatibleStateError
from penstock.contrib.parquet import read_manifests
from penstock.plugins.state.transfer.reshard.plan import with_topics
from tests.reshard.runs import new_log, produce, resharded, run, settings

from .programs import expected, sink, through_outbox
from .reading import counted


def records(numbers: range) -> list[tuple[str, str, int]]:
    return [(f"k{number % 5}", f"v{number}", number) for number in numbers]


@pytest.mark.parametrize("changelog", ["directory:changelog", "topic:"])
def test_a_drained_application_is_resharded(tmp_path: Path, changelog: str) -> None:
    location = tmp_path / "location"
    location.mkdir()
    log = new_log({"in": 2, "in-3": 3})

    def application(topic: str, **options: Any) -> Application:
        made = settings(tmp_path, changelog if changelog == "topic:" else f"directory:{tmp_path / 'changelog'}")
        return with_topics(Application("shop", through_outbox(sink(location, **options)), **made), {"in": topic})

    produce(log, "in", records(range(30)))
    run(application("in", max_age="1h"), log)
    with pytest.raises(IncompatibleStateError, match=r"store 'files-staged'.*records wait there.*max_age=\"0s\""):
        resharded(application("in-3", max_age="1h"), log, 3, sources={"in": "in-3"})
    run(application("in"), log)
    assert counted(location) == expected(range(30))
    resharded(application("in-3"), log, 3, sources={"in": "in-3"})
    produce(log, "in-3", records(range(30, 60)))
    run(application("in-3"), log)
    assert counted(location) == expected(range(60))
    # The refused attempt has used the id of a second layout.
    assert {(each.application, each.partition) for each in read_manifests(str(location))} >= {
        ("shop", 0), ("shop", 1), ("shop-layout-3", 0), ("shop-layout-3", 1), ("shop-layout-3", 2)
    }  # fmt: skip
