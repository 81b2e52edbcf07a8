"""Queries over HTTP: what each request answers, what is refused, and that nothing malformed makes the server fail."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock import ConfigError, StoreUnavailableError, TopicPartition, run
from penstock.client import AsyncClient, Client, Entry, QueryError
from penstock.plugins.serdes.json_text import dump_json
from penstock.plugins.state.queries.http import service, writing
from penstock.plugins.state.queries.http.guard import Address
from penstock.plugins.state.queries.http.server import ServerOptions, open_socket
from penstock.queries import Queries

from ..replicas.every_kind import INPUT
from ..spark import apps
from ..spark.surroundings import Surroundings
from ..waiting import wait_until
from .served import ask, served
from .test_kinds import Asked

TOKEN = "a-token-of-the-test"


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of stores of every kind, in one task."""
    with closing(Asked(tmp_path_factory.mktemp("kinds"))) as asked:
        asked.writer.commit([("a", "1"), ("ab", "2"), ("b", "3"), ("a", "4")])
        with served(asked.here) as url:
            yield url


@pytest.fixture(scope="module")
def counts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Queries]:
    """Counts of 300 keys in four tasks."""
    with Surroundings(tmp_path_factory.mktemp("counts") / "data") as surroundings:
        surroundings.create(**{"in": 4, "out": 4})
        surroundings.put("in", [(f"k{number % 300:03}", "v", number) for number in range(600)])
        application = surroundings.application("app", apps.count(), engine="embedded")
        run(application)
        with Queries.of_this_machine(application) as queries:
            yield queries


def test_each_kind_is_asked(kinds: str) -> None:
    def get(store: str, **given: Any) -> Any:
        return ask(kinds, f"/v1/stores/{store}/get", given=given)

    assert get("plain", key="a") == (200, {"key": "a", "value": "4"})
    assert get("stamped", key="a", timestamps="true")[1] == {"key": "a", "value": "4", "timestamp": 20}
    assert get("windows", key="a", window=20)[1] == {"key": "a", "start": 20, "end": 30, "value": "4"}
    assert get("versions", key="a", as_of=7)[1] == {"key": "a", "value": "1", "timestamp": 5, "valid_to": 20}
    refused = [get("plain", key="x"), get("windows", key="a", window=30), get("sessions", key="a")]
    assert [status for status, _ in refused] == [
        404,
        404,
        400,
    ]

    def entries(store: str, **given: Any) -> Any:
        return ask(kinds, f"/v1/stores/{store}/entries", given=given)[1]["entries"]

    assert [each["value"] for each in entries("windows", key="a")] == ["1", "4"]
    assert [each["key"] for each in entries("windows", **{"from": 10, "to": 15})] == ["ab", "b"]
    assert entries("sessions", key="b") == [{"key": "b", "start": 0, "end": 15, "value": "3"}]
    assert [each["key"] for each in entries("sessions", **{"from": 15, "to": 15})] == ["b"]
    assert [each["value"] for each in entries("versions", key="a")] == ["4", "1"]
    assert [each["value"] for each in entries("lists", key="a")] == ["1", "4"]
    assert [each["key"] for each in entries("plain", prefix="a")] == ["a", "ab"]
    assert [each["key"] for each in entries("plain", start="ab")] == ["ab", "b"]
    several = json.dumps({"keys": ["b", "x"]}).encode()
    found = ask(kinds, "/v1/stores/plain/get", method="POST", body=several)
    assert found == (200, {"entries": [{"key": "b", "value": "3"}, None]})
    stores = {each["name"]: each["kind"] for each in ask(kinds, "/v1/stores")[1]["stores"]}
    assert stores["windows"] == stores["twice"] == "window" and len(stores) == 9
    assert ask(kinds, "/health/live")[0] == ask(kinds, "/health/ready")[0] == 200
    assert ask(kinds, "/v1/stores/plain/metadata", given={"key": "a"})[1]["task"] == "0_0"
    ahead = {"key": "a", "at_least": "in:0:99", "wait": 0}
    assert ask(kinds, "/v1/stores/plain/get", given=ahead)[0] == 503


@pytest.mark.parametrize("path", ["get?key=", "entries?prefix=", "metadata?key=", "changes?key=a&wait="])
@pytest.mark.parametrize("text", ["%FF", "caf%E9", "%ED%A0%80"])
def test_a_key_that_is_no_utf8_is_refused(kinds: str, path: str, text: str) -> None:
    """Each wrong byte would stand for the replacement character, which is another key."""
    status, answer = ask(kinds, f"/v1/stores/plain/{path}{text}")
    assert status == 400 and "expected text in UTF-8" in answer["error"]["message"]


@pytest.mark.parametrize(
    ("path", "given", "said"),
    [
        ("plain/get", {"as_of": 7}, "as_of: store 'plain' is of the kind 'key_value'; only the kind 'versioned'"),
        ("plain/get", {"window": 7}, "window: store 'plain' is of the kind 'key_value'; only the kind 'window'"),
        ("windows/get", {"as_of": 7, "window": 20}, "as_of: store 'windows' is of the kind 'window'; only the kind"),
        ("versions/get", {"window": 7}, "window: store 'versions' is of the kind 'versioned'; only the kind 'window'"),
        ("recent/get", {"as_of": 7}, "as_of: store 'recent' is of the kind 'lru_map'; only the kind 'versioned'"),
        ("plain/entries", {"from": 7}, "from: store 'plain' is of the kind 'key_value', whose entries have no times"),
        ("lists/entries", {"to": 7}, "to: store 'lists' is of the kind 'list', whose entries have no times"),
    ],
)
def test_a_time_that_a_kind_does_not_take_is_refused(kinds: str, path: str, given: Any, said: str) -> None:
    status, answer = ask(kinds, f"/v1/stores/{path}", given={"key": "a", **given})
    assert status == 400 and said in answer["error"]["message"]


def test_a_key_takes_no_thread(kinds: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = [("plain", {}), ("stamped", {}), ("windows", {"window": 20}), ("versions", {"as_of": 7})]
    threads: list[object] = []
    in_thread = service._Service._in_thread

    async def noted(self: Any, work: Any, *given: Any) -> Any:
        threads.append(work)
        return await in_thread(self, work, *given)

    monkeypatch.setattr(service._Service, "_in_thread", noted)

    def takes_none() -> bool:
        threads.clear()
        for store, more in asked:
            assert ask(kinds, f"/v1/stores/{store}/get", given={"key": "a", **more})[0] == 200
        return not threads

    wait_until(takes_none, "no query has to ask the log first")
    assert ask(kinds, "/v1/stores/recent/get", given={"key": "a"})[0] == 200 and threads


def test_a_large_answer_is_written_beside_the_event_loop(kinds: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys wait for nobody's page: one of 150 MB kept the loop for seconds. A thread writes an entry at a time."""
    threads, largest = set[str](), 0

    def dumping(data: Any) -> bytes:
        nonlocal largest
        threads.add(threading.current_thread().name)
        largest = max(largest, len(data.get("entries", ())))
        return dump_json(data)

    monkeypatch.setattr(service, "dump_json", dumping)
    path = "/v1/stores/windows/entries"
    page = ask(kinds, path)[1]
    lines = ask(kinds, path, accept="application/x-ndjson")[1].splitlines()
    assert page == {"entries": list(map(json.loads, lines)), "page": None} and len(lines) == 4
    assert threads and "test-server" not in threads and largest == 0


@settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(limit=st.integers(1, 5), store=st.sampled_from(["plain", "windows", "twice", "sessions", "lists"]))
def test_pages_of_any_size_have_every_entry_once(kinds: str, limit: int, store: str) -> None:
    path = f"/v1/stores/{store}/entries"
    for chosen in ({}, {"key": "a"}):
        expected, found, page = ask(kinds, path, given=chosen)[1]["entries"], [], None
        while True:
            more: dict[str, str] = {} if page is None else {"page": page}
            _, answer = ask(kinds, path, given={**chosen, "limit": limit, **more})
            assert len(answer["entries"]) <= limit
            found += answer["entries"]
            page = answer["page"]
            if page is None:
                break
        assert found == expected and len(found) >= 1


def test_the_client_reads_all_tasks(counts: Queries) -> None:
    expected = {f"k{number:03}": 2 for number in range(300)}
    with served(counts) as url, Client(url) as client:
        store = client.store("counts")
        assert store.get("k007") == Entry("k007", 2) and store.get("x") is None
        assert store.get_many(["k001", "x"]) == [Entry("k001", 2), None] and store.get_many([]) == []
        assert {each.key: each.value for each in store.entries()} == expected
        assert sorted(each.key for each in store.entries(start="k010", end="k012")) == ["k010", "k011", "k012"]
        assert client.stores() == {"counts": "key_value"}
        assert store.lags() == dict.fromkeys(["0_0", "0_1", "0_2", "0_3"], 0)
        status, lines = ask(url, "/v1/stores/counts/entries", accept="application/x-ndjson")
        assert status == 200 and len(lines.splitlines()) == 300
        with pytest.raises(QueryError, match="no store of this name") as refused:
            client.store("x").get("k")
        assert (refused.value.status, refused.value.code) == (404, "unknown_store")
        with pytest.raises(StoreUnavailableError):
            client.store("counts", at_least={TopicPartition("in", each): 999 for each in range(4)}, wait="0ms").get("k")

        async def asked() -> Any:
            async with AsyncClient(url) as several:
                store = several.store("counts")
                return await store.get("k007"), [each.value async for each in store.entries(prefix="k00")]

        assert asyncio.run(asked()) == (Entry("k007", 2), [2] * 10)
    with Client(url) as client, pytest.raises(QueryError, match="does not answer"):
        client.stores()


def test_a_wrong_path_is_no_missing_key(counts: Queries) -> None:
    with served(counts) as url, Client(f"{url}/behind-no-proxy") as astray, Client(url) as client:
        for store in (astray.store("counts"), client.store(""), client.store("a/b")):
            with pytest.raises(QueryError) as refused:
                store.get("k007")
            assert (refused.value.status, refused.value.code) == (404, "unknown_path")


def test_who_is_let_in(counts: Queries) -> None:
    with served(counts) as url:
        own = url.removeprefix("http://")
        assert ask(url, "/v1/stores", host="evil.example")[0] == 403
        assert ask(url, "/v1/stores", origin="http://evil.example")[0] == 403
        assert ask(url, "/v1/stores", origin=f"http://{own}")[0] == 200
        assert ask(url, "/v1/stores", host="localhost:1")[0] == 200
    with served(counts, token=TOKEN) as url:
        for path in ("/v1/stores", "/openapi.json", "/v1/stores/counts/get?key=a"):
            assert ask(url, path)[0] == ask(url, path, authorization="Bearer wrong")[0] == 401
        assert ask(url, "/health/live")[0] == ask(url, "/health/ready")[0] == 200
        assert ask(url, "/v1/stores", authorization=f"Bearer {TOKEN}")[0] == 200
        with Client(url, token=TOKEN) as client:
            assert client.stores() == {"counts": "key_value"}
    for address in ("0.0.0.0:0", "[::]:0", "example.com:1"):
        with pytest.raises(ConfigError, match=r"other machines reach it, and there is no token"):
            open_socket(ServerOptions(Address.of(address, "--listen")), "--listen")
    for text in ("8080", "host:", "host:99999", "host:x"):
        with pytest.raises(ConfigError, match="expected HOST:PORT"):
            Address.of(text, "--listen")


def test_stores_that_are_left_out_or_masked(counts: Queries) -> None:
    with served(counts, excluded=["counts"]) as url:
        assert ask(url, "/v1/stores")[1]["stores"] == []
        assert ask(url, "/v1/stores/counts/get", given={"key": "k001"})[0] == 404
    with served(counts, masked=["counts"]) as url:
        assert ask(url, "/v1/stores/counts/get", given={"key": "k001"})[1] == {"key": "k001", "value": "***"}
        assert {each["value"] for each in ask(url, "/v1/stores/counts/entries")[1]["entries"]} == {"***"}
    with pytest.raises(ConfigError, match="no store 'count'.*did you mean 'counts'"), served(counts, masked=["count"]):
        pass


def test_sizes_and_methods(kinds: str) -> None:
    assert ask(kinds, "/v1/stores/plain/get", method="POST", body=b"x" * (2 << 20))[0] == 413
    assert ask(kinds, "/v1/stores/plain/get", method="POST", body=b"[" * 100_000)[0] == 400
    assert ask(kinds, "/v1/stores/plain/get", method="DELETE")[0] == 405
    for path in ("/", "/v1/stores/..%2f..%2fetc/get", "/v1/stores/../get", "/v1/stores/%00/get?key=a"):
        assert ask(kinds, path)[0] == 404, path
    assert ask(kinds, "/v1/stores/plain/get?key=..%2F..%2Fetc%2Fpasswd")[0] == 404


# ---------------------------------------------------------------- what the description says

ANY_TEXT = st.one_of(st.text(max_size=20), st.sampled_from(["a", "true", "-1", "0", "9" * 25, "1e3", "{}", "in:0:1"]))
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda each: st.one_of(st.lists(each, max_size=3), st.dictionaries(st.text(max_size=5), each, max_size=3)),
    max_leaves=5,
)


def values(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Return texts that a parameter's schema describes."""
    if schema["type"] == "integer":
        return st.integers(schema["minimum"], min(schema["maximum"], 2**63 - 1)).map(str)
    return {
        "boolean": st.sampled_from(["true", "false"]),
        "string": st.sampled_from(["a", "b", "0_0", "", "x"]) | st.text(max_size=5),
        "array": st.sampled_from(["in:0:1", "in:0:0", "out:0:1", "in:5:1"]),
    }[schema["type"]]


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_requests_of_all_kinds_get_an_answer_that_is_described(kinds: str, data: st.DataObject) -> None:
    described = ask(kinds, "/openapi.json")[1]
    paths = {path: of for path, of in described["paths"].items() if not path.endswith("/changes")}  # without end
    path, method = data.draw(st.sampled_from([(path, each) for path, of in paths.items() for each in of]))
    operation = described["paths"][path][method]
    given = [
        (each["name"], data.draw(values(each["schema"]) | ANY_TEXT))
        for each in operation["parameters"]
        if each["in"] == "query" and each["name"] != "wait" and (each["required"] or data.draw(st.booleans()))
    ]
    if "{store}" in path:
        store = data.draw(st.sampled_from(["plain", "windows", "versions", "sessions", "lists", "expiring"]) | ANY_TEXT)
        path = path.replace("{store}", quote(store, safe=""))
    if data.draw(st.integers(0, 9)) == 0:
        given.append((data.draw(ANY_TEXT), data.draw(ANY_TEXT)))
    body = None
    if method == "post":
        keys = st.lists(JSON, max_size=3).map(lambda keys: json.dumps({"keys": keys}).encode())
        body = data.draw(keys | JSON.map(lambda each: json.dumps(each).encode()) | st.binary(max_size=20))
    accept = data.draw(st.sampled_from(["*/*", "application/x-ndjson"]))
    waits = [("wait", "0")] if any(each["name"] == "wait" for each in operation["parameters"]) else []
    status, answer = ask(kinds, path, method=method.upper(), body=body, given=[*given, *waits], accept=accept)
    assert str(status) in operation["responses"], (status, answer)
    if status == 200 and accept == "*/*":
        name = operation["responses"]["200"]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
        assert set(described["components"]["schemas"][name]["required"]) <= set(answer)
    elif status != 200:
        assert set(answer["error"]) == {"code", "message"} and "/" not in answer["error"]["code"]
        assert status < 500 or any(name == "at_least" for name, _ in given)


def test_its_commit_is_that_of_the_test(kinds: str) -> None:
    with Client(kinds) as client:
        found = client.store("stamped", timestamps=True, at_least={INPUT: 4}, wait="30s").get("a")
    assert found == Entry("a", "4", timestamp=20)


def test_replicas_are_served_on_any_machine(counts: Queries, tmp_path: Path) -> None:
    with (
        Queries.from_changelog(counts.application, directory=tmp_path) as far,
        served(far) as url,
        Client(url) as client,
    ):
        at_least = {TopicPartition("in", each): 1 for each in range(4)}
        assert client.store("counts", at_least=at_least, wait="30s").get("k299") == Entry("k299", 2)


@pytest.mark.parametrize("sent", [b"", b"\r\n", b"GET /v1/stores HTTP/1.1\r\nhost: x", b"GET /v1/"])
@pytest.mark.parametrize("after_a_request", [False, True])
def test_a_connection_without_a_whole_request_is_closed(
    counts: Queries, sent: bytes, after_a_request: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counted for ever, and 2,000 of them left no room for others. Between two requests uvicorn's limit holds."""
    monkeypatch.setattr(writing, "HEAD_SECONDS", 0.2)
    with (
        served(counts) as url,
        socket.create_connection((urlsplit(url).hostname or "", urlsplit(url).port or 0), timeout=60) as connection,
    ):
        if after_a_request:
            connection.sendall(f"GET /v1/stores HTTP/1.1\r\nhost: {urlsplit(url).netloc}\r\n\r\n".encode())
            assert connection.recv(65_536).startswith(b"HTTP/1.1 200")
        if sent or not after_a_request:
            connection.sendall(sent)
            assert connection.recv(1) == b"", "the server closes it"
        assert ask(url, "/v1/stores")[0] == 200
