"""Queries on two machines: a server forwards to that where the application runs, or answers from copies."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from penstock import Application, ConfigError, FencedError, StoreUnavailableError, TopicPartition, run
from penstock.client import Client, QueryError
from penstock.plugins.state.queries.http.forwarding import FORWARDED
from penstock.plugins.state.queries.noted_servers import (
    TaskServer,
    active_server,
    note_task_servers,
    noted_server,
    task_servers,
)
from penstock.queries import Queries

from ..leases import brief_lease
from ..spark import apps
from ..spark.surroundings import Surroundings
from ..waiting import wait_until
from .served import ask, served

KEYS = [f"k{number}" for number in range(7)]
TOKEN = "a-token-of-the-test"


@pytest.fixture
def surroundings(tmp_path: Path) -> Iterator[Surroundings]:
    with Surroundings(tmp_path / "data") as made:
        made.create(**{"in": 4, "out": 4})
        yield made


def on(machine: str, surroundings: Surroundings, **settings: Any) -> tuple[Application, str]:
    """Return an application of a machine, which has local state of its own; and the URL of its server."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    given = {"queries": address, "application_server": address, "state_dir": str(surroundings.directory / machine)}
    made = surroundings.application(
        "app", apps.count(), engine="embedded", commit_interval="10ms", queries_token=TOKEN, **{**given, **settings}
    )
    return made, f"http://{address}"


def put(surroundings: Surroundings, rounds: int) -> None:
    surroundings.put("in", [(key, "v", number) for number in range(rounds) for key in KEYS])


def get(url: str, key: str, **headers: str) -> Any:
    """Return the status and the value of a key; 0 if nobody answers."""
    try:
        found: Any = {"authorization": f"Bearer {TOKEN}", **headers}
        status, answer = ask(url, "/v1/stores/counts/get", given={"key": key}, **found)
    except OSError:
        return 0, None
    return status, answer.get("value")


def test_a_server_forwards_until_the_application_runs_there(surroundings: Surroundings) -> None:
    put(surroundings, 10)
    (first, one), (second, two) = on("one", surroundings), on("two", surroundings)
    running = first.start("continuous")
    wait_until(lambda: get(one, "k3") == (200, 10), "the first machine answers")
    waiting = second.start("continuous", wait=True)
    wait_until(lambda: get(two, "k3") == (200, 10), "the second machine forwards")
    assert get(two, "k3", **{FORWARDED: "1"})[0] == 503
    assert get(two, "x")[0] == 404
    assert get(two, "k3", authorization="Bearer wrong")[0] == 401
    with Client(two, token=TOKEN) as client:
        store = client.store("counts")
        assert [each and each.value for each in store.get_many(["k1", "x"])] == [10, None]
        assert {each.key: each.value for each in store.entries()} == dict.fromkeys(KEYS, 10)
        found = client.request("/v1/stores/counts/metadata", [("key", "k3")])
        assert found["server"] == one
        assert [each["server"] for each in found["copies"]] == [one, two]
        assert found["copies"][0]["behind"] == 0 and found["copies"][1]["version"] is None
    running.stop()
    with waiting:
        put(surroundings, 5)
        wait_until(lambda: get(two, "k3", **{FORWARDED: "1"}) == (200, 15), "the second machine has the tasks")
        with Queries.from_changelog(second, directory=surroundings.directory / "far") as far, served(far) as url:
            assert wait_until(lambda: get(url, "k3"))[0] == 200
            assert far.query_metadata_for_key("counts", "k3").server == two
    with Queries.from_changelog(second, directory=surroundings.directory / "far") as far:
        assert far.active_server() is None


def test_a_waiting_machine_answers_from_its_standbys(surroundings: Surroundings) -> None:
    put(surroundings, 10)
    (first, one), (second, two) = on("one", surroundings), on("two", surroundings, num_standby_replicas=1)
    running = first.start("continuous")
    wait_until(lambda: get(one, "k3") == (200, 10), "the first machine answers")
    waiting = second.start("continuous", wait=True)
    wait_until(lambda: get(two, "k3", **{FORWARDED: "1"}) == (200, 10), "the standbys answer")
    with Client(two, token=TOKEN) as client:
        copies = client.request("/v1/stores/counts/metadata", [("key", "k3")])["copies"]
        assert [each["behind"] for each in copies] == [0, 0]
        running.stop()
        with waiting:
            # It is never silent while the application moves.
            for _ in range(50):
                found = client.store("counts", stale_ok=True).get("k3")
                assert found is not None and found.value == 10


def test_a_server_that_is_noted_and_does_not_answer(surroundings: Surroundings) -> None:
    put(surroundings, 10)
    made, url = on("one", surroundings, queries=None, application_server=None)
    run(made)
    surroundings.log.put_meta("app", "application_server", url.encode())
    with Queries.of_this_machine(made) as here, served(here, token=TOKEN) as own:
        assert get(own, "k3") == (200, 10)
        with Client(own, token=TOKEN) as client:
            ahead = client.store("counts", at_least={TopicPartition("in", each): 99 for each in range(4)}, wait="0ms")
            with pytest.raises(StoreUnavailableError):
                ahead.get("k3")
            assert client.request("/v1/stores/counts/metadata", [("key", "k3")])["server"] == url
            with pytest.raises(QueryError, match="no store of this name"):
                client.store("x").get("k3")


def test_a_server_forwards_to_the_machine_of_a_task(surroundings: Surroundings) -> None:
    """As on a cluster: each machine has some of the tasks, and a key is asked where its task runs."""
    put(surroundings, 10)
    (first, one), (second, _) = on("one", surroundings, application_server=None), on("two", surroundings)
    run(first)
    here = socket.gethostname()
    with (
        Queries.of_this_machine(first) as has, served(has, token=TOKEN) as owner,
        Queries.of_this_machine(second) as lacks, served(lacks, token=TOKEN) as url,
    ):  # fmt: skip
        task = has.query_metadata_for_key("counts", "k3").task
        note_task_servers("app", surroundings.log, [TaskServer(owner, here, (task,)), TaskServer(one, here)])
        elsewhere = next(key for key in KEYS if has.query_metadata_for_key("counts", key).task != task)
        wait_until(lambda: get(url, "k3") == (200, 10), "the task's machine answers")
        assert get(url, elsewhere)[0] == 503, "the server with all tasks does not answer, and this one lacks the key"
        assert has.query_metadata_for_key("counts", "k3").server == owner
        assert has.query_metadata_for_key("counts", elsewhere).server == one
        with Client(url, token=TOKEN) as client:
            copies = client.request("/v1/stores/counts/metadata", [("key", "k3")])["copies"]
        assert copies[0]["server"] is None and copies[0]["behind"] == 0, "of the machine with the task"
        with served(lacks) as without:  # its clients have no token, so the owner refuses them
            path, given = "/v1/stores/counts/get", {"key": "k3"}
            assert ask(without, path, given=given)[0] == 503, "401 would ask its clients for a token it does not want"
        # A loopback address of another machine leads to this one, to whatever listens there.
        note_task_servers("app", surroundings.log, [TaskServer(owner, "another-machine", (task,))])
        wait_until(lambda: get(url, "k3")[0] == 503, "nobody else can be asked")


def test_a_head_is_answered_by_the_machine_of_the_task(surroundings: Surroundings) -> None:
    """The answer has the length of a body that does not come; a server must not wait for it."""
    put(surroundings, 10)
    (first, _), (second, _) = on("one", surroundings), on("two", surroundings, application_server=None)
    run(first)
    with (
        Queries.of_this_machine(first) as has, served(has, token=TOKEN) as owner,
        Queries.of_this_machine(second) as lacks, served(lacks, token=TOKEN) as url,
    ):  # fmt: skip
        note_task_servers("app", surroundings.log, [TaskServer(owner, socket.gethostname())])
        wait_until(lambda: get(url, "k3") == (200, 10), "it forwards")
        connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
        with closing(connection):
            for path in ("get?key=k3", "entries", "metadata?key=k3", "changes", "get?key=k3"):
                connection.request("HEAD", f"/v1/stores/counts/{path}", headers={"authorization": f"Bearer {TOKEN}"})
                answer = connection.getresponse()
                assert (path, answer.status, answer.read()) == (path, 200, b"")
                assert get(url, "k3") == (200, 10), "the server with the tasks is asked"


def test_a_server_of_another_application_has_the_address_now(surroundings: Surroundings) -> None:
    """As when a run was killed, and its address stays noted."""
    (made, _), (lacking, _) = on("one", surroundings), on("two", surroundings, application_server=None)
    other = surroundings.application("other", apps.count(), engine="embedded")
    put(surroundings, 5)
    run(made)
    put(surroundings, 5)
    run(other)
    with (
        Queries.of_this_machine(other) as others, served(others, token=TOKEN) as stranger,
        Queries.of_this_machine(lacking) as lacks, served(lacks, token=TOKEN) as url,
    ):  # fmt: skip
        note_task_servers("app", surroundings.log, [TaskServer(stranger, socket.gethostname())])
        assert get(stranger, "k3") == (200, 10)
        wait_until(lambda: lacks.task_servers() != [])
        assert get(url, "k3") == (503, None), "it has another count"
        with Client(url, token=TOKEN) as client, pytest.raises(StoreUnavailableError):
            client.store("counts").get_many(KEYS)


@pytest.mark.parametrize("wrong", ["8080", "ftp://host:1", "host", "http://"])
def test_the_setting_is_checked_at_the_start(surroundings: Surroundings, wrong: str) -> None:
    with pytest.raises(ConfigError, match=f"setting 'application_server' '{wrong}': expected HOST:PORT"):
        run(on("one", surroundings, application_server=wrong)[0], "available_now")


def test_a_frozen_run_leaves_the_note_of_its_successor(surroundings: Surroundings) -> None:
    """It wakes without its lease, and ends: others went on to ask nobody, until the successor was started again."""
    (first, _), (second, two) = on("one", surroundings), on("two", surroundings)
    log = surroundings.log
    with ExitStack() as successor:
        with noted_server(first, log, brief_lease(log)):
            lease = log.lease("app", "the successor", 60_000)
            successor.callback(lease.release)
            successor.enter_context(noted_server(second, log, lease))
            note_task_servers("app", lease, [beside := TaskServer("http://machine:1", "machine", ("0_0",))])
        assert active_server(first, log) == two
        assert task_servers("app", log) == [beside]
    assert active_server(first, log) is None and task_servers("app", log) == []
    with pytest.raises(FencedError), noted_server(first, log, lease):
        pass
