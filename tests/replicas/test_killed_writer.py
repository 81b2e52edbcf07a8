"""A replica follows another process that commits every tenth of a second, and is killed."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from penstock.changelog import version_counter
from penstock.plugins.engine.task.locations import open_log
from penstock.plugins.state.copies import Replica

from ..kafka.names import fresh_name
from ..processes import Child
from .every_kind import content_of
from .numbering import numbering

_VERSIONS = 5
"""The replica is seen at so many versions of each writer, at least."""


def writer(*arguments: str) -> Child:
    process = Child("-m", "tests.replicas.numbering", *arguments)
    assert process.line()
    return process


def follow(replica: Replica, seen: list[int]) -> None:
    """Catch up until further versions were seen, each of one commit: one number under all keys."""
    until = len(seen) + _VERSIONS
    while len(seen) < until:
        replica.catch_up()
        if replica.version is None:
            continue
        counter = version_counter(replica.version)
        assert seen == [] or counter >= seen[-1]
        found = {value for rows in content_of(replica).values() for value in rows.values()}
        assert len(found) <= 1, "rows of several commits"
        assert {len(rows) for rows in content_of(replica).values()} <= {20}
        if counter not in seen:
            seen.append(counter)


@pytest.mark.parametrize(
    ("log", "changelog"),
    [
        ("local:log", "directory:changes"),
        ("local:log", "topic:"),
        pytest.param("kafka", "topic:", marks=pytest.mark.broker),
        pytest.param("kafka", "directory:changes", marks=pytest.mark.broker),
    ],
)
def test_a_writer_is_killed(log: str, changelog: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """The replica sees one commit at a time, and goes on with the next writer; the writers do not notice it."""
    if log == "kafka":
        log = f"kafka:{request.getfixturevalue('broker').bootstrap}"
    arguments = (log, changelog, str(tmp_path / "data"), fresh_name("numbering"))
    application = numbering(*arguments)
    seen: list[int] = []
    with (
        writer(*arguments) as first,
        closing(open_log(application.settings)) as opened,
        Replica(application, "0_0", opened, tmp_path / "replica") as replica,
    ):
        follow(replica, seen)
        assert first.poll() is None
        first.kill()
        with writer(*arguments) as second:
            follow(replica, seen)
            out, _ = second.communicate()  # its input ends, and so does it
            assert second.returncode == 0
            assert replica.catch_up()
            assert replica.version == out.strip()
            assert replica.behind() == 0
