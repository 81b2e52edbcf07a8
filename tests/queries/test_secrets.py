"""What is masked or secret is in no answer, page or error of a server; and no serde reads a key that a reader made."""

from __future__ import annotations

import json
import logging
import os
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from penstock import (
    ConfigError,
    DeadLetter,
    OutputBatch,
    PenstockError,
    Processor,
    Secret,
    Topology,
    key_value_store,
    run,
    window_store,
)
from penstock.console import console_app
from penstock.plugins.operate.console.pages import pages
from penstock.plugins.serdes.of import of
from penstock.plugins.serdes.pickle import PickleSerde
from penstock.plugins.state.queries.http.parameters import OPERATIONS
from penstock.queries import Queries

from ..console.browsing import Reader
from ..spark.surroundings import Surroundings
from .served import ask, served

MARK = "marked-secret"
TOKEN, ACTIONS, SETTING = (f"{MARK}-{name}-of-the-test" for name in ("token", "acting-token", "setting"))
STORES = ("texts", "typed", "windows", "pickled")


class Keep(Processor):
    """Keeps each value in every store; a record of the key "bad" fails."""

    def process(self, record: Any) -> None:
        if record.key == "bad":
            raise ValueError(record.value)
        store = self.context.get_store
        store("texts").put(record.key, record.value)
        store("typed").put({"id": record.key}, {"value": record.value})
        store("windows").put(record.key, record.value, 0)
        store("pickled").put((record.key,), record.value)


class Worse(Processor):
    def process(self, record: Any) -> None:
        if record.key == "worse":
            raise SystemError(record.value)


def application(surroundings: Surroundings, **settings: Any) -> Any:
    typed = of(dict[str, str])
    stores = [
        key_value_store("texts", key_serde="str", value_serde="str"),
        key_value_store("typed", key_serde=typed, value_serde=typed),
        window_store("windows", retention="1h", window_size="1m", key_serde="str", value_serde="str"),
        key_value_store("pickled", key_serde="pickle", value_serde="pickle"),
    ]
    topology = Topology().add_source("in", "in").add_processor("keep", Keep, "in", stores=stores)
    topology.add_source("late", "late").add_processor("worse", Worse, "late")
    return surroundings.application("app", topology, engine="embedded", user={"api_key": Secret(SETTING)}, **settings)


@pytest.fixture(scope="module")
def queries(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Queries]:
    """The stores of an application whose last run has failed."""
    with Surroundings(tmp_path_factory.mktemp("secrets") / "data") as surroundings:
        surroundings.create(**{"in": 1, "late": 1, "dead": 1})
        surroundings.put("in", [(f"k{number}", f"{MARK}-{number}", number) for number in range(9)])
        surroundings.put("in", [("bad", f"{MARK}-letter", 1)])
        made = application(surroundings, processing_handler=DeadLetter("dead"))
        run(made)
        surroundings.put("late", [("worse", f"{MARK}-failed", 1)])
        with pytest.raises(PenstockError, match=MARK):
            run(application(surroundings))
        with Queries.of_this_machine(made) as opened:
            yield opened


VALUES: dict[str, list[str]] = {
    "key": ["k1", "k9", "null", '{"id": "k1"}', '{"!bytes": "!"}', "5", '{"!tuple": ["k1"]}', "\u00e9"],
    "json_keys": ["true", "x"],
    "start": ["k1", '{"id": "k1"}'],
    "end": ["k3"],
    "prefix": ["k", "5"],
    "from": ["0", "x"],
    "to": ["9"],
    "limit": ["1", "0"],
    "page": ["x", urlsafe_b64encode(b'["0_0","6b31",0]').decode()],
    "window": ["0", "x"],
    "as_of": ["1"],
    "timestamps": ["true"],
    "stale_ok": ["true"],
    "wait": ["0", "x"],
    "task": ["0_0", "7_7"],
    "all_tasks": ["true"],
    "at_least": ["in:0:0", "in:0:99", "x"],
}


def requests_of(store: str) -> Iterator[tuple[str, str, dict[str, str], bytes | None]]:
    """Yield requests of each kind, with each parameter alone and with each key."""
    for operation in OPERATIONS:
        if operation.name == "changes":
            continue  # it does not end
        path, method = operation.path.format(store=store), operation.method.upper()
        bodies = (
            [None] if method == "GET" else [json.dumps({"keys": [key]}).encode() for key in ("k1", 5, {"id": "k1"})]
        )
        keys = [{"key": key} for key in VALUES["key"]] if "key" in operation.parameters else [{}]
        others = [{name: value} for name in operation.parameters if name != "key" for value in VALUES[name]]
        for body, key, other in product(bodies, [{}, *keys], [{}, *others]):
            yield method, path, {"wait": "0", **key, **other}, body


PAGES = [
    "", "topology", "tasks", "stores", "dead-letters", "dead-letters?before=1&partition=0", "settings", "events",
    *(f"{page}?name={store}{more}" for page in ("store", "copies") for store in STORES
      for more in ("", "&key=k1", "&prefix=k", "&key=%7B%22id%22%3A%20%22k1%22%7D")),
]  # fmt: skip


def test_no_answer_has_a_masked_value(queries: Queries, caplog: pytest.LogCaptureFixture) -> None:
    statuses = set()
    with caplog.at_level(logging.DEBUG), served(queries, masked=STORES) as url:
        for store in (*STORES, "none"):
            for method, path, given, body in requests_of(store):
                status, answer = ask(url, path, method=method, given=given, body=body)
                statuses.add(status)
                assert MARK not in str(answer) and status != 500, (path, given, answer)
    assert statuses == {200, 400, 404, 410, 503}
    check_lines(caplog)


def check_lines(logged: pytest.LogCaptureFixture) -> None:
    """No line, of a library either, has a token or a secret, nor one from `info` on what is masked."""
    for record in logged.records:
        line = f"{record.name} {record.getMessage()} {record.exc_text or record.exc_info or ''}"
        assert not any(secret in line for secret in (TOKEN, ACTIONS, SETTING)), line
        assert record.levelno < logging.INFO or MARK not in line, line


@pytest.mark.parametrize("options", [{"masked": STORES}, {"excluded": ["texts"], "masked": STORES[1:]}])
def test_no_page_has_a_masked_value_or_a_token(
    queries: Queries, options: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level(logging.DEBUG),
        served(queries, pages=pages, token=TOKEN, actions_token=ACTIONS, **options) as url,
    ):
        for token in (None, "wrong", TOKEN, ACTIONS):
            reader = Reader(url)
            if token is not None:
                answer = reader.post("login", follow=False, token=token)
                assert MARK not in answer.html + str(answer.headers)
            for page in PAGES:
                answer = reader.get(page)
                assert MARK not in answer.html + str(answer.headers), (page, answer.text)
                expected = (200, 400, 404) if token in (TOKEN, ACTIONS) else (401,)
                assert answer.status in expected, (page, answer.text)
            for topic, offset in (("dead", "99"), ("in", "0")):
                assert MARK not in reader.post("replay", topic=topic, partition="0", offset=offset).html
        assert "It failed: `penstock status` says why" in reader.get("/console/").text
        check_lines(caplog)
    with served(queries, pages=pages) as url:
        assert f"{MARK}-failed" in Reader(url).get().text, "where nothing is masked, the page says why a run failed"


def refusing(topic: str, record: Any, count: int) -> int:
    raise ValueError(f"no partition for {record.key}")


@pytest.mark.parametrize("options", [{"masked": ["texts"]}, {"excluded": ["texts"]}, {}])
def test_a_replay_does_not_show_the_key_that_a_sink_refuses(
    options: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    texts = key_value_store("texts", key_serde="str", value_serde="str")
    topology = Topology().add_source("in", "in", key_serde="str").add_processor("keep", Keep, "in", stores=[texts])
    topology.add_sink("back", "in", "keep", partitioner=refusing)
    with Surroundings(tmp_path) as surroundings:
        surroundings.create(**{"in": 1, "dead": 1})
        given = surroundings.application("app", topology, engine="embedded", processing_handler=DeadLetter("dead"))
        run(given)
        # Headers without the number of a partition, as of another client: the sink is asked.
        headers = (("__streams.errors.exception", b"E"), ("__streams.errors.topic", b"in"))
        surroundings.log.append(OutputBatch("dead", [MARK.encode()], [b"v"], [1], [headers]))
        with (
            caplog.at_level(logging.DEBUG),
            Queries.of_this_machine(given) as queries,
            served(queries, pages=pages, actions_token=ACTIONS, **options) as url,
        ):
            reader = Reader(url)
            reader.post("login", token=ACTIONS)
            for answer in (
                reader.post("replay", topic="dead"),
                reader.post("replay", topic="dead", partition="0", offset="0"),
            ):
                assert "it is not known to which of its partitions they go" in answer.text
                assert (MARK in answer.html) == (not options) and answer.status == 200
            check_lines(caplog)


def test_a_page_token_that_no_server_made_reaches_no_serde(queries: Queries, tmp_path: Path) -> None:
    """The serde of the keys is pickle, which runs what it reads."""
    made = tmp_path / "made by a reader"
    key = b"cposix\nmkdir\n(V" + os.fsencode(made) + b"\ntR0K\0."
    forged = json.dumps(["0_0", "", key.hex(), [], 0]).encode()
    path = "/v1/stores/{}/entries"
    with served(queries) as url, served(queries) as other:
        first = ask(url, path.format("pickled"), given={"limit": "1"})[1]
        mine = urlsafe_b64decode(first["page"])
        tokens = [forged, mine[:32] + forged, bytes(32) + forged, mine[:-1], mine[1:], b""]
        for token in (urlsafe_b64encode(each).decode() for each in tokens):
            status, answer = ask(url, path.format("pickled"), given={"page": token})
            assert (status, answer["error"]["code"]) == (410, "page_gone"), answer
        assert not made.exists()
        assert PickleSerde().deserialize(key) == 0 and made.exists(), "what was sent is one that it would have run"
        assert ask(url, path.format("pickled"), given={"page": first["page"]})[0] == 200
        for server, store in ((url, "texts"), (other, "pickled")):
            assert ask(server, path.format(store), given={"page": first["page"]})[0] == 410
        assert ask(url, path.format("pickled"), given={"page": "\u00e9"})[0] == 400


def test_one_token_for_both_is_refused(queries: Queries) -> None:
    with pytest.raises(ConfigError, match="to read and the token to act .* are the same"):
        console_app(queries, token=TOKEN, actions_token=TOKEN)
    with pytest.raises(ConfigError, match="are the same"), served(queries, token=TOKEN, actions_token=TOKEN):
        pass


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_the_cookie_is_secure_where_the_browser_speaks_tls(queries: Queries, scheme: str) -> None:
    """A proxy in front of the server may speak it; the origin of the form says so."""
    with served(queries, pages=pages, token=TOKEN) as url:
        reader = Reader(url)
        headers = {"origin": url.replace("http", scheme), "content-type": "application/x-www-form-urlencoded"}
        answer = reader.post("login", follow=False, headers=headers, token=TOKEN)
        assert (answer.status, "Secure" in answer.headers["set-cookie"].split("; ")) == (303, scheme == "https")
