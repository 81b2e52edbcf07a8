"""Pages of the console: what they show, who may read and act, and that nothing hostile gets through."""

from __future__ import annotations

import http.client
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote, urlencode
from urllib.request import HTTPCookieProcessor, Request, build_opener

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock import (
    Application,
    ConfigError,
    DeadLetter,
    FencedError,
    Headers,
    OutputBatch,
    ProcessingError,
    Processor,
    Secret,
    Topology,
    fail,
    key_value_store,
    run,
)
from penstock.console import console_app
from penstock.plugins.engine.program.dead_letters import Selection, replay
from penstock.plugins.engine.program.letter_targets import ApplicationTargets
from penstock.plugins.operate.console import watch
from penstock.plugins.operate.console.app import Right, Rights
from penstock.plugins.operate.console.pages import pages
from penstock.queries import Queries
from penstock.support.printable import printable

from ..queries.served import served
from ..spark.surroundings import Surroundings
from .browsing import Answer, Reader

TOKEN, ACTIONS = "a-token-of-the-test", "another-token-that-acts"
PAGES = [
    "",
    "topology",
    "tasks",
    "stores",
    "store?name=texts",
    "copies?name=texts",
    "dead-letters",
    "settings",
    "events",
]
HOSTILE = ["<script>alert(1)</script>", "'\"><img src=x onerror=alert(1)>", "{{ 7 * 7 }}", "&lt;", "\0\x01\x1b[31m", "‮"]


class Keep(Processor):
    """Keeps each value under its key; a record of the key "bad" fails."""

    def process(self, record: Any) -> None:
        if record.key.startswith("bad"):
            raise ValueError(f"<b>{record.value}</b>")
        self.context.get_store("texts").put(record.key, record.value)


def topology() -> Topology:
    store = key_value_store("texts", key_serde="str", value_serde="str")
    return Topology().add_source("<in>", "in").add_processor("keep & count", Keep, "<in>", stores=[store])


def application(surroundings: Surroundings, **settings: Any) -> Application:
    given = {"engine": "embedded", "processing_handler": DeadLetter("dead"), "user": {"api_key": Secret("hunter2")}}
    return surroundings.application("app", topology(), **given, **settings)


@pytest.fixture(scope="module")
def surroundings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Surroundings]:
    with Surroundings(tmp_path_factory.mktemp("console") / "data") as made:
        made.create(**{"in": 2, "dead": 1})
        rows = [(f"k{number:03}", f"v{number}", number) for number in range(120)]
        made.put("in", [*rows, *((text, text, 1) for text in HOSTILE), ("bad", "of bad", 7)])
        run(application(made))
        # Another client may write the message into the header of the exception.
        others = (("__streams.errors.exception", b"java.lang.X of bad"), ("__streams.errors.topic", b"in"))
        made.log.append(OutputBatch("dead", [b"k"], [b"v"], [8], [others]))
        yield made


@pytest.fixture(scope="module")
def queries(surroundings: Surroundings) -> Iterator[Queries]:
    with Queries.of_this_machine(application(surroundings)) as made:
        yield made


@pytest.fixture(scope="module")
def url(queries: Queries) -> Iterator[str]:
    with served(queries, pages=pages) as found:
        yield found


@pytest.fixture
def reader(url: str) -> Reader:
    return Reader(url)


def test_what_pages_show(reader: Reader) -> None:
    overview = reader.get("/")
    assert (overview.status, reader.here) == (200, "/console/")
    assert "stopped" in overview.text and "lag 0" in overview.text and "ended by done" in overview.text
    assert "dropped 1" in overview.text
    drawn = reader.get("topology")
    assert "keep & count" in drawn.text and "skipped 1" in drawn.text and "lag 0" in drawn.text
    assert "store?name=texts" in drawn.page.links()
    tasks = reader.get("tasks?filter=0_1&sort=lag")
    assert "1 to 1 of 1" in tasks.text and "0_1" in tasks.text and "0_0" not in tasks.text
    assert "texts key_value shown copies of texts" in reader.get("stores").text
    assert re.search(r"0_0 \d+ 0 0_1 \d+ 0", reader.get("copies?name=texts").text)
    setting = reader.get("settings").text
    assert "processing_handler" in setting and "user.api_key ******** code" in setting and "hunter2" not in setting
    assert "opening first 2" in reader.get("events").text


def test_stores_are_browsed(reader: Reader) -> None:
    assert "k007 v7" in reader.get("store?name=texts&key=k007&prefix=&start=").text
    assert "There is no such entry." in reader.get("store?name=texts&key=none").text
    found: list[str] = []
    answer = reader.get("store?name=texts&prefix=k")
    while True:
        found += re.findall(r"k\d{3}(?= v)", answer.text)
        following = [each for each in answer.page.links() if "page=" in each]
        if not following:
            break
        answer = reader.get(following[-1])
    assert sorted(found) == [f"k{number:03}" for number in range(120)]
    for query, status in (("name=x", 404), ("", 404), ("name=texts&page=x", 400), ("name=texts&stale_ok=x", 400)):
        assert reader.get(f"store?{query}").status == status, query
    assert "There is no store of this name" in reader.get("store?name=../../etc/passwd").text


def test_a_partition_that_is_not_there_is_named(reader: Reader) -> None:
    answer = reader.get("dead-letters?partition=7")
    assert answer.status == 400
    assert "topic 'dead' has no partition 7: it has 1, numbered from 0." in answer.text


def test_dead_letters_are_listed_but_not_replayed_without_the_right(reader: Reader) -> None:
    page = reader.get("dead-letters")
    assert "ValueError from in" in page.text and "<b>of bad</b>" in page.text and "Replay" not in page.text
    assert reader.post("replay", topic="dead", partition="0", offset="0").status == 403
    assert reader.get("dead-letters?topic=in").status == 404


def test_a_letter_is_replayed_by_the_token_that_acts(tmp_path: Path) -> None:
    with Surroundings(tmp_path / "data") as surroundings:
        surroundings.create(**{"in": 1, "dead": 1})
        surroundings.put("in", [("bad", "1", 1), ("bad", "2", 2)])
        run(application(surroundings))
        made = application(surroundings)
        with (
            Queries.of_this_machine(made) as queries,
            served(queries, pages=pages, token=TOKEN, actions_token=ACTIONS) as url,
        ):
            reader = Reader(url)
            assert reader.get("dead-letters").status == 401
            assert reader.post("login", token=TOKEN).status == 200
            assert "Replay" not in reader.get("dead-letters").text
            assert reader.post("replay", topic="dead").status == 403
            assert reader.post("login", token=ACTIONS).status == 200
            assert "Replay this letter" in reader.get("dead-letters").text
            assert reader.post("replay", topic="dead", headers={"origin": "http://evil.example"}).status == 403
            assert reader.post("replay", topic="dead", headers={}).status == 403, "no page of ours sends no origin"
            assert reader.post("replay", topic="in").status == 404
            assert reader.post("replay", topic="dead", partition="0", offset="x").status == 400
            assert "Replayed: 1." in reader.post("replay", topic="dead", partition="0", offset="1").text
            assert [value for _, value, _ in surroundings.read("in")[0]] == ["1", "2", "2"]
            assert "Replayed: 1." in reader.post("replay", topic="dead").text
            assert [value for _, value, _ in surroundings.read("in")[0]] == ["1", "2", "2", "1"]
            assert "Replayed: 0." in reader.post("replay", topic="dead").text
            surroundings.create(gone=1)
            for source in (b"gone", b"in"):
                headers = (("__streams.errors.exception", b"E"), ("__streams.errors.topic", source))
                surroundings.log.append(OutputBatch("dead", [b"k"], [b"good"], [3], [headers]))
            answer = reader.post("replay", topic="dead").text
            assert "Replayed: 1. 1 still wait: " in answer, "no source reads the topic, and it holds up no other letter"
            assert [value for _, value, _ in surroundings.read("in")[0]][4:] == ["good"]
            assert not surroundings.read("gone")[0]
            assert "Replayed: 0. 1 still wait: " in reader.post("replay", topic="dead", partition="0", offset="2").text
            assert reader.post("logout").status == 401


def fields_of(answer: Answer, offset: int) -> dict[str, Any]:
    """Return the fields of the form of one letter, as the page has them."""
    forms = [each for each in answer.html.split("<form")[1:] if f'name="offset" value="{offset}"' in each]
    return dict(re.findall(r'name="(\w+)" value="([^"]*)"', forms[0].partition("</form>")[0]))


def test_a_letter_is_replayed_once_however_often_and_late_its_button_is_pressed(tmp_path: Path) -> None:
    """By a double click, in two tabs, and in one that shows a topic that was deleted and made again since."""
    with Surroundings(tmp_path / "data") as surroundings:
        surroundings.create(**{"in": 1, "dead": 1})
        surroundings.put("in", [("bad", str(number), number) for number in range(3)])
        run(application(surroundings))
        made = application(surroundings)

        def sent() -> list[str | None]:
            return [value for _, value, _ in surroundings.read("in")[0]][3:]

        with (
            Queries.of_this_machine(made) as queries,
            served(queries, pages=pages, actions_token=ACTIONS) as url,
        ):
            reader = Reader(url)
            reader.post("login", token=ACTIONS)
            first, second = reader.get("dead-letters"), reader.get("dead-letters")
            for _ in range(3):
                assert "Replayed: 1." in reader.post("replay", **fields_of(first, 1)).text
            assert sent() == ["1"]
            answer = reader.post("replay", **fields_of(second, 1))
            assert "Not sent: the letter, or another one of its record, had been replayed already." in answer.text
            assert "Not sent" in reader.post("replay", topic="dead", partition="0", offset="1").text
            assert sent() == ["1"]
            page = reader.get("dead-letters")
            assert page.text.count("Replay this letter again") == 1
            again = [fields_of(each, 1) for each in (page, page, reader.get("dead-letters"))]
            for each in again:
                assert "Replayed: 1." in reader.post("replay", **each).text
            assert sent() == ["1", "1", "1"], "two pages have asked for it again"
            for _ in range(2):
                every: dict[str, Any] = {"topic": "dead", "form": fields_of(page, 0)["form"]}
                assert "Replayed: 2." in reader.post("replay", **every).text
            assert sent() == ["1", "1", "1", "0", "2"]
            old = reader.get("dead-letters")
            surroundings.log.delete_topic("dead")
            surroundings.create(dead=1)
            headers = (("__streams.errors.exception", b"E"), ("__streams.errors.topic", b"in"))
            surroundings.log.append(OutputBatch("dead", [b"k"], [b"good"], [0], [headers]))
            for offset in (0, 2):
                answer = reader.post("replay", **fields_of(old, offset))
                assert answer.status == 409 and "This letter is not there any more" in answer.text
            assert len(sent()) == 5
            assert "Replayed: 1." in reader.post("replay", **fields_of(reader.get("dead-letters"), 0)).text
            assert sent()[5:] == ["good"]


def test_letters_of_one_record_are_replayed_once_by_their_buttons(tmp_path: Path) -> None:
    with Surroundings(tmp_path / "data") as surroundings:
        surroundings.create(**{"in": 1, "dead": 1})
        headers = tuple((f"__streams.errors.{name}", text) for name, text in (
            ("exception", b"E"), ("topic", b"in"), ("partition", b"0"), ("offset", b"0"),
        ))  # fmt: skip
        surroundings.log.append(OutputBatch("dead", [b"k"] * 2, [b"v"] * 2, [1] * 2, [headers] * 2))
        made = application(surroundings)
        with Queries.of_this_machine(made) as queries, served(queries, pages=pages, actions_token=ACTIONS) as url:
            reader = Reader(url)
            reader.post("login", token=ACTIONS)
            page = reader.get("dead-letters")
            assert "Replayed: 1." in reader.post("replay", **fields_of(page, 0)).text
            assert "Not sent: the letter, or another one" in reader.post("replay", **fields_of(page, 1)).text
            assert len(surroundings.read("in")[0]) == 1


def test_another_replay_takes_over_and_each_letter_is_sent_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as one by the command line: it begins when the page's replay has sent the letters of one partition."""
    with Surroundings(tmp_path / "data") as surroundings:
        surroundings.create(**{"in": 1, "dead": 2})
        headers = (("__streams.errors.exception", b"E"), ("__streams.errors.topic", b"in"))
        keys: list[bytes | None] = [b"%d" % number for number in range(20)]
        surroundings.log.append(OutputBatch("dead", keys, keys, [0] * 20, [headers] * 20))
        made = application(surroundings)
        asked: list[str] = []
        refuses = ApplicationTargets.refuses

        def refuses_late(targets: ApplicationTargets, topic: str) -> str | None:
            asked.append(topic)
            if len(asked) == 20:
                replay(surroundings.log, "dead", Selection())
            return refuses(targets, topic)

        with Queries.of_this_machine(made) as queries, served(queries, pages=pages, actions_token=ACTIONS) as url:
            reader = Reader(url)
            reader.post("login", token=ACTIONS)
            monkeypatch.setattr(ApplicationTargets, "refuses", refuses_late)
            answer = reader.post("replay", topic="dead", form="f")
            assert answer.status == 409 and "Another replay of this topic began meanwhile" in answer.text
            assert sorted(value or "" for _, value, _ in surroundings.read("in")[0]) == sorted(map(str, range(20)))
            asked.clear()
            assert "Replayed: 0." in reader.post("replay", topic="dead", form="f").text
            asked.clear()
            monkeypatch.setattr(ApplicationTargets, "refuses", refuses)
            surroundings.log.append(OutputBatch("dead", keys, keys, [0] * 20, [headers] * 20))
            counts = [len(each) for each in surroundings.read("dead").values()]
            monkeypatch.setattr(ApplicationTargets, "refuses", refuses_late)
            with pytest.raises(FencedError, match=rf"has taken over.*having sent {counts[0] // 2} records"):
                replay(surroundings.log, "dead", Selection(), targets=ApplicationTargets(made, surroundings.log))
            assert len(surroundings.read("in")[0]) == 40


def test_servers_at_two_ports_of_a_host_have_sessions_of_their_own(queries: Queries) -> None:
    """A browser sends cookies to every port of a host, so the second login ended the first session."""
    tokens = (TOKEN, ACTIONS)
    with served(queries, pages=pages, token=TOKEN) as one, served(queries, pages=pages, token=ACTIONS) as other:
        readers = [Reader(one), Reader(other)]
        readers[1].cookies = readers[0].cookies
        for reader, token in zip(readers, tokens, strict=True):
            assert reader.post("login", token=token).status == 200
        assert [reader.get().status for reader in readers] == [200, 200]
        assert readers[0].post("logout").status == 401
        assert [reader.get().status for reader in readers] == [401, 200]


class Prefixed(BaseHTTPRequestHandler):
    """A proxy that has a server below `/ops`, which does not know of it."""

    target = ""

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        connection = http.client.HTTPConnection(self.target)
        connection.request(self.command, self.path.removeprefix("/ops"), body, dict(self.headers))
        answer = connection.getresponse()
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(answer.read())

    do_POST = do_GET

    def log_message(self, *given: Any) -> None:
        pass


def test_a_browser_logs_in_behind_a_proxy_with_a_path_of_its_own(queries: Queries) -> None:
    proxy = ThreadingHTTPServer(("127.0.0.1", 0), Prefixed)
    thread = threading.Thread(target=proxy.serve_forever, args=[0.01])
    thread.start()
    try:
        with served(queries, pages=pages, token=TOKEN) as url:
            Prefixed.target = url.removeprefix("http://")
            site = f"http://127.0.0.1:{proxy.server_port}"
            browser = build_opener(HTTPCookieProcessor())

            def status(page: str, **form: str) -> int:
                body = urlencode(form).encode() if form else None
                request = Request(f"{site}/ops/{page}", body, {"origin": site})
                try:
                    with browser.open(request) as answer:
                        return int(answer.status)
                except HTTPError as error:
                    with error:
                        return error.code

            assert status("console/") == 401
            assert status("console/login", token=TOKEN) == 200
            assert [status(page) for page in ("console/", "console/tasks")] == [200, 200]
            assert status("console/logout", x="") == 401 and status("console/tasks") == 401
    finally:
        proxy.shutdown()
        thread.join()
        proxy.server_close()


def test_who_is_let_in(queries: Queries) -> None:
    with served(queries, pages=pages, token=TOKEN, actions_token=ACTIONS) as url:
        for page in PAGES:
            answer = Reader(url).get(page)
            assert answer.status == 401 and "texts" not in answer.html and "app" not in answer.text.split(), page
            assert Reader(url).get(page, authorization=f"Bearer {TOKEN}").status == 200
            assert Reader(url).get(page, authorization="Bearer wrong").status == 401
        reader = Reader(url)
        assert reader.post("login", token="wrong").status == 401 and not reader.cookies
        cookie = reader.post("login", follow=False, token=TOKEN).headers["set-cookie"]
        assert {"HttpOnly", "SameSite=strict"} <= set(cookie.split("; ")) and TOKEN not in cookie
        assert "path=" not in cookie.lower()
        assert reader.get().status == 200
        ((name, value),) = reader.cookies.items()
        right, expires, signature = value.split(".")
        rights = Rights(TOKEN, ACTIONS)
        reader.cookies[name] = rights.cookie(Right.READ, 60)
        assert reader.get().status == 200
        for forged in (
            rights.cookie(Right.READ, -1), Rights(ACTIONS, None).cookie(Right.READ),
            f"ACT.{expires}.{signature}", f"{right}.{int(expires) + 1}.{signature}", f"{right}.{expires}.", "", "a.b.c",
            f"NONE.{expires}.{signature}", "READ.9999999999.é",
        ):  # fmt: skip
            reader.cookies[name] = quote(forged)
            assert reader.get().status == 401, forged
        for answer in (Reader(url).get(host="evil.example"), Reader(url).get(origin="http://evil.example")):
            assert answer.status in (401, 403)
    with served(queries, pages=pages) as url:
        for page in PAGES:
            for headers in ({"host": "evil.example"}, {"origin": "http://evil.example"}):
                answer = Reader(url).get(page, **headers)
                assert answer.status == 403 and "texts" not in answer.html and "stopped" not in answer.html


def test_stores_that_are_left_out_or_masked_stay_so(queries: Queries) -> None:
    with served(queries, pages=pages, excluded=["texts"]) as url:
        reader = Reader(url)
        assert reader.get("store?name=texts").status == reader.get("copies?name=texts").status == 404
        assert "texts" not in reader.get("stores").text
        letters = reader.get("dead-letters").text
        assert "ValueError" in letters and "java.lang.X" in letters and "of bad" not in letters
    with served(queries, pages=pages, masked=["texts"]) as url:
        reader = Reader(url)
        assert "k007 ***" in reader.get("store?name=texts&key=k007").text
        assert "of bad" not in reader.get("dead-letters").text


def test_nothing_is_loaded_from_elsewhere(reader: Reader) -> None:
    for page in PAGES:
        answer = reader.get(page)
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy and not re.search(r"unsafe|https?:|\*", policy)
        for tag, attributes in answer.page.tags:
            assert not {"style", "onclick", "onload", "onerror"} & attributes.keys(), (page, tag)
            for name in ("href", "src", "action"):
                assert not re.match(r"\w+:|//", attributes.get(name) or ""), (page, tag, attributes)
            assert tag != "style"
    for file, kind in (("console.css", "text/css"), ("console.js", "text/javascript"), ("icon.svg", "image/svg+xml")):
        answer = reader.get(file)
        assert answer.status == 200 and answer.headers["content-type"].startswith(kind)
        assert not re.search(r"url\(|@import|https?://(?!www\.w3\.org/2000/svg)", answer.html)


PATHS = [
    "/console/../../etc/passwd", "/console/%2e%2e/%2e%2e/etc/passwd", "/console/..%2fapp.py", "/console/app.py",
    "/console/templates/base.html", "/console//", "/console/%00", "/console/store/..", "/console/console.css/",
]  # fmt: skip


def test_paths_and_sizes(url: str) -> None:
    reader = Reader(url)
    for path in PATHS:
        assert reader.ask("GET", path, None, {}).status == 404, path
    assert reader.get("/console").status == 200
    for method in ("POST", "PUT", "DELETE"):
        assert reader.ask(method, "/console/", b"", {}).status == 405
    origin = {"origin": url}
    assert reader.ask("POST", "/console/login", b"x" * (2 << 20), origin).status == 413
    assert reader.ask("POST", "/console/login", b"&".join([b"a=1"] * 100), origin).status == 400
    assert reader.ask("POST", "/console/login", b"\xff\xfe", origin).status == 400
    assert reader.get(f"store?name=texts&key={'k' * 20_000}").status in (200, 400, 414)


ANY = st.one_of(st.text(max_size=30), st.sampled_from([*HOSTILE, "-1", "9" * 25, "0", "true", "texts", "dead"]))
FIELDS = ["name", "key", "prefix", "start", "end", "from", "to", "json_keys", "all_tasks", "stale_ok", "page", "topic",
          "partition", "before", "sent", "filter", "sort", "offset", "token", "x"]  # fmt: skip


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    page=st.sampled_from([*PAGES, "login", "replay"]), fields=st.dictionaries(st.sampled_from(FIELDS), ANY, max_size=5)
)
def test_no_request_makes_a_page_fail_or_comes_back_as_markup(url: str, page: str, fields: dict[str, str]) -> None:
    query = "&".join(f"{name}={quote(text, errors='surrogatepass')}" for name, text in fields.items())
    path = f"/console/{page.partition('?')[0]}?{page.partition('?')[2]}&{query}"
    answer = Reader(url).ask("GET", path, None, {})
    assert answer.status < 500, path
    check_markup(answer)


def check_markup(answer: Answer) -> None:
    """A page has the tags of its templates only, and one script."""
    known = {
        "html", "head", "meta", "title", "link", "script", "body", "a", "header", "div", "span", "bdi", "button", "nav",
        "ul", "li", "main", "h1", "h2", "p", "dl", "dt", "dd", "table", "caption", "thead", "tbody", "tr", "th", "td",
        "form", "label", "input", "select", "option", "details", "summary", "pre", "svg", "line", "polyline", "defs",
        "marker", "path", "rect", "g", "text",
    }  # fmt: skip
    assert {tag for tag, _ in answer.page.tags} <= known
    assert sum(tag == "script" for tag, _ in answer.page.tags) == 1
    assert not [given for _, given in answer.page.tags if any(name.startswith("on") for name in given)]


@settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(st.one_of(st.text(max_size=20), st.sampled_from(HOSTILE)), min_size=1, max_size=4))
def test_keys_values_and_failures_are_shown_as_text(tmp_path_factory: Any, texts: list[str]) -> None:
    with Surroundings(tmp_path_factory.mktemp("hostile") / "data") as surroundings:
        surroundings.create(**{"in": 1, "dead": 1})
        surroundings.put("in", [*((text, text, 1) for text in texts), *((f"bad{text}", text, 1) for text in texts)])
        made = application(surroundings)
        run(made)
        with Queries.of_this_machine(made) as queries, closing(console_app(queries)) as console:
            for page in ("store?name=texts", "dead-letters"):
                answer = in_process(console, page)
                assert answer.status == 200
                check_markup(answer)
                shown = "".join(answer.page.texts)
                for text in texts:
                    if page != "dead-letters" or text:
                        assert printable(text) in shown, "control characters are seen, and no other text is"


def test_no_header_or_failure_turns_a_page(tmp_path: Path) -> None:
    """Other clients write the headers of letters, too; a run fails with any text."""
    with Surroundings(tmp_path / "data") as surroundings:
        surroundings.create(**{"in": 1, "dead": 1})
        hostile = "\u202e\u200f\u2028\x1b[2J\nnext"
        names = ("exception", "topic", "message", "stacktrace")
        headers = tuple((f"__streams.errors.{name}", f"{name}{hostile}".encode()) for name in names)
        long = (*headers[:2], ("__streams.errors.message", b"m" * 50_000))
        letters: list[Headers] = [(*headers, (f"h{hostile}", hostile.encode())), long]
        surroundings.log.append(OutputBatch("dead", [b"k"] * 2, [b"v"] * 2, [8, 9], letters))
        surroundings.put("in", [("bad", hostile, 1)])
        made = application(surroundings)
        with pytest.raises(ProcessingError):
            run(made.with_settings(processing_handler=fail))
        with Queries.of_this_machine(made) as queries, closing(console_app(queries)) as console:
            for page in PAGES:
                answer = in_process(console, page)
                assert not set(answer.html) & {"\u202e", "\u200f", "\u2028", "\x1b"}, page
                if page == "dead-letters":
                    assert "topic\\u202e\\u200f\\u2028\\u001b[2J\\nnext partition None" in answer.text
                    assert "exception\\u202e\\u200f\\u2028\\u001b[2J\\nnext" in answer.text
                    assert "m" * 20_000 + "… (50,000 characters)" in answer.text
                if page == "":
                    assert "<b>\\u202e\\u200f\\u2028\\u001b[2J next" in answer.text, "why the run has failed"
            searched = in_process(console, "store?name=texts&key=%1B%E2%80%AE")
            assert ("input", {"name": "key", "value": "\x1b\u202e"}) in searched.page.tags, "as it was given"


def in_process(app: Any, page: str) -> Answer:
    """Ask an ASGI application for a page, without a server."""
    import asyncio

    path, _, query = page.partition("?")
    scope = {
        "type": "http", "method": "GET", "path": f"/{path}", "raw_path": f"/{path}".encode(), "root_path": "",
        "query_string": query.encode(), "headers": [(b"host", b"localhost")], "scheme": "http",
        "server": ("localhost", 80), "client": ("localhost", 1), "http_version": "1.1",
    }  # fmt: skip
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(app(scope, receive, send))
    headers = http.client.HTTPMessage()
    for name, value in sent[0]["headers"]:
        headers[name.decode()] = value.decode()
    return Answer(sent[0]["status"], headers, b"".join(each.get("body", b"") for each in sent[1:]))


def test_mounted_into_an_application_of_the_users(queries: Queries) -> None:
    from starlette.applications import Starlette
    from starlette.routing import Mount

    with closing(console_app(queries, hosts=["ops.example.com"], masked=["texts"])) as console:
        site = Starlette(routes=[Mount("/ops/penstock", console)])
        answer = in_process(site, "ops/penstock/")
        assert answer.status == 200 and "stopped" in answer.text
        assert "k007 ***" in in_process(site, "ops/penstock/store?name=texts&key=k007").text
    with pytest.raises(ConfigError, match="actions_token: expected a token of 16"):
        console_app(queries, actions_token="short")
    with pytest.raises(ConfigError, match="no store 'text'.*did you mean 'texts'"):
        console_app(queries, masked=["text"])


def test_a_log_that_is_away_is_said_on_the_page(tmp_path: Path) -> None:
    with Surroundings(tmp_path / "data") as surroundings:
        surroundings.create(**{"in": 1, "dead": 1})
        with Queries.of_this_machine(application(surroundings)) as queries:
            (tmp_path / "no log").write_text("")
            queries.named = queries.named.with_settings(log=f"local:{tmp_path / 'no log'}")
            with closing(console_app(queries)) as console:
                for page in ("", "topology", "tasks", "events"):
                    answer = in_process(console, page)
                    assert answer.status == 200 and "The log cannot be read" in answer.text
                assert "cannot be read now" in in_process(console, "dead-letters").text


def test_no_page_waits_for_minutes_for_a_broker_that_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages share a few threads, so those that wait would keep all others waiting."""
    monkeypatch.setattr(watch, "LOG_TIMEOUT", "1s")
    with Surroundings(tmp_path / "data") as surroundings, closing(socket.socket()) as taken:
        surroundings.create(**{"in": 1, "dead": 1})
        taken.bind(("127.0.0.1", 0))  # nobody listens at this port
        with Queries.of_this_machine(application(surroundings)) as queries:
            away = f"kafka:127.0.0.1:{taken.getsockname()[1]}"
            queries.named = queries.named.with_settings(log=away, task_timeout="3m")
            with closing(console_app(queries, actions_token=ACTIONS)) as console:
                began = time.monotonic()
                assert "The log cannot be read" in in_process(console, "").text
                assert "cannot be read now" in in_process(console, "dead-letters").text
                assert time.monotonic() - began < 120
