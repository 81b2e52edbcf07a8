"""A process that reshards is frozen just before it switches, for so long that others take the application over."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from penstock import FencedError, Lease
from penstock.plugins.applications.stored_id import read_stored
from penstock.plugins.reshard import plan_reshard, reshard
from penstock.plugins.runtime.locations import open_log

from .runs import lease, outputs, produce, resharded, run
from .test_sources import always, appending, rows


class Freezing(Lease):
    """A lease whose process is frozen before it writes a note: `meanwhile` others act."""

    def __init__(self, inner: Lease, key: str, meanwhile: Callable[[], object]) -> None:
        self._inner = inner
        self._key = key
        self._meanwhile = meanwhile

    def renew(self) -> None:
        self._inner.renew()

    def put_meta(self, application_id: str, key: str, value: bytes) -> None:
        if key == self._key:
            self._meanwhile()
        self._inner.put_meta(application_id, key, value)

    def release(self) -> None:
        self._inner.release()


@pytest.mark.parametrize("where", ["memory", "local"])
def test_it_does_not_switch_after_the_application_has_gone_on(where: str, tmp_path: Path) -> None:
    log = open_log(appending(tmp_path).with_settings(log=f"{where}:{tmp_path / 'log'}").settings)
    for topic, partitions in (("in", 4), ("new", 7), ("out", 1)):
        log.create_topic(topic, partitions)
    produce(log, "in", rows(0, 3))
    run(appending(tmp_path), log)
    app = appending(tmp_path, "new")

    def go_on() -> None:
        successor = log.lease("shop", "the application", 10_000)
        produce(log, "in", rows(3, 5))
        run(appending(tmp_path), log)
        successor.release()

    frozen = Freezing(lease(app, log), "stored-as", go_on)
    with pytest.raises(FencedError, match="a test"):
        reshard(plan_reshard(app, log, 7, sources={"in": "new"}), log, frozen)
    assert read_stored("shop", log).id == "shop"
    resharded(app, log, 7, sources={"in": "new"})
    produce(log, "new", rows(5, 6))
    run(app, log)
    assert outputs(log) == always(tmp_path, 6)
    log.close()
