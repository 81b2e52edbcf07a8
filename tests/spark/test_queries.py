"""Queries of an application that runs on Spark: in the driver's process, and over HTTP beside it."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import pytest

from penstock.client import Client

from . import apps
from .surroundings import Surroundings

KEYS = [f"k{number}" for number in range(7)]


def test_a_run_on_spark_answers(spark: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "penstock.queries")
    with Surroundings(tmp_path / "data") as surroundings:
        surroundings.create(**{"in": 2, "out": 2})
        surroundings.put("in", [(key, "v", number) for number in range(10) for key in KEYS])
        application = surroundings.application("app", apps.count(), queries="127.0.0.1:0", parallelism=2)
        with application.start("continuous", session=spark) as running:
            url = next(found[0] for each in caplog.messages if (found := re.search(r"http://\S+", each)))
            ends = dict(surroundings.log.end_offsets(surroundings.partitions("in")))
            store = running.store("counts", at_least=ends, wait="60s")
            assert store.get_many([*KEYS, "x"]) == [10] * 7 + [None]
            with Client(url) as client:
                assert [
                    each and each.value for each in client.store("counts", at_least=ends, wait="30s").get_many(KEYS)
                ] == ([10] * 7)
                with client.store("counts").changes("k3") as changes, running.store("counts").changes("k3") as here:
                    surroundings.put("in", [("k3", "v", 11)])
                    assert next(changes).value == 11
                    assert next(here) == ("k3", 11)
