"""Each page in Chromium, of an application that runs on Kafka: light and dark, wide and on a phone, by keyboard."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from penstock import Application, DeadLetter, OutputBatch
from penstock.client import Client, QueryError
from penstock.dsl import StreamsBuilder, tumbling
from penstock.errors import StoreUnavailableError
from penstock.plugins.engine.task.locations import open_log
from penstock.plugins.testing.kafka_broker import KafkaBroker

from ..kafka.names import fresh_name
from ..waiting import wait_until
from .chromium import PROGRAM, Chromium, chromium

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="there is no Chromium here (Debian: apt-get install chromium)")

TOKEN, ACTIONS = "a-token-of-the-test", "another-token-that-acts"
VIEWS = [
    "./", "topology", "tasks", "stores", "store?name=amounts", "store?name=by-hour", "copies?name=amounts",
    "dead-letters", "settings", "events",
]  # fmt: skip
PICTURES = os.environ.get("PENSTOCK_PICTURES")
"""A directory for pictures of the pages, for people."""


def shop(orders: str) -> StreamsBuilder:
    def amount(text: str) -> int:
        return int(text.partition(" ")[2])

    builder = StreamsBuilder()
    amounts = builder.stream(orders).map_values(amount)
    by_product = amounts.group_by_key()
    by_product.count("amounts")
    by_product.windowed_by(tumbling("1h", grace="0s")).count("by-hour")
    amounts.group_by(lambda amount: str(amount % 10), value_serde="int").count("by-digit")
    return builder


@pytest.fixture
def url(broker: KafkaBroker, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[str]:
    """A server with pages beside an application that runs, and has processed some orders."""
    caplog.set_level(logging.INFO, "penstock.queries")
    orders, dead = fresh_name("orders"), fresh_name("dead")
    application = Application(
        fresh_name("shop"), shop(orders), engine="embedded", log=f"kafka:{broker.bootstrap}", data_dir=str(tmp_path),
        commit_interval="50ms", processing_handler=DeadLetter(dead), queries="127.0.0.1:0", queries_console=True,
        queries_token=TOKEN, queries_actions=True, queries_actions_token=ACTIONS, state_serde="str",
    )  # fmt: skip
    log = open_log(application.settings)
    try:
        log.create_topic(orders, 4)
        log.create_topic(dead, 1)
        keys: list[bytes | None] = [f"product {number % 60}".encode() for number in range(600)]
        texts: list[bytes | None] = [f"order {number}".encode() for number in range(598)]
        log.append(
            OutputBatch(orders, keys, [*texts, b"order <b>none</b>", b"order two"], [1_000 * n for n in range(600)])
        )
    finally:
        log.close()
    with application.start():
        found = next(match[0] for each in caplog.messages if (match := re.search(r"http://\S+", each)))
        with Client(found, token=TOKEN) as client:
            wait_until(lambda: _count(client) == 10)
        yield found


def _count(client: Client) -> Any:
    try:
        found = client.store("amounts").get("product 1")
    except (QueryError, StoreUnavailableError):
        return None
    return found and found.value


@pytest.mark.broker
def test_each_view(url: str, tmp_path: Path) -> None:
    with chromium(tmp_path) as browser:
        browser.show_as(1200, 900, dark=False)
        browser.open(f"{url}/console/")
        check(browser, "token")
        browser.follow(
            f"document.querySelector('[name=token]').value = {TOKEN!r}; document.querySelector('form').submit()"
        )
        browser.errors.clear()  # that the first page was refused
        for width, height, dark in ((1200, 900, False), (390, 844, True)):
            browser.show_as(width, height, dark=dark)
            for view in VIEWS:
                browser.open(f"{url}/console/{view}")
                assert browser.evaluate("document.querySelector('nav [aria-current]').textContent"), view
                check(browser, f"{'dark' if dark else 'light'}-{width}-{view}")
        browser.show_as(1200, 900, dark=False)
        browser.open(f"{url}/console/store?name=amounts&key=product+1")
        assert "10" in browser.evaluate("document.querySelector('tbody').textContent")
        check_keyboard(browser, url)
        check_updates(browser, url)
        check_replay(browser, url)
        assert not browser.errors
        check_end_of_session(browser, url)
        assert {urlsplit(each).netloc for each in browser.requests} == {urlsplit(url).netloc}


def check(browser: Chromium, name: str) -> None:
    """A page fits its window, and axe finds nothing."""
    if PICTURES:
        browser.screenshot(Path(PICTURES) / f"{re.sub(r'[^-a-z0-9]+', '_', name)}.png")
    assert not {TOKEN, ACTIONS} & set(re.findall(r"[-\w]+", browser.evaluate("document.documentElement.outerHTML")))
    sizes = browser.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert sizes[0] <= sizes[1], f"{name}: wider than its window"
    if axe := axe_script():
        browser.evaluate(f"{axe}; 0")
        found = browser.evaluate("axe.run().then(found => found.violations.map(each => [each.id, each.help, "
                                 "each.nodes.map(node => node.html)]))")  # fmt: skip
        assert not found, f"{name}: {found}"


def axe_script() -> str | None:
    """axe-core, from a Python package that has it; None where that is not installed."""
    found = find_spec("axe_core_python")
    if found is None or found.submodule_search_locations is None:
        return None
    return next(Path(found.submodule_search_locations[0]).rglob("axe.min.js")).read_text()


def check_keyboard(browser: Chromium, url: str) -> None:
    browser.open(f"{url}/console/")
    browser.press("Tab")
    assert browser.evaluate("document.activeElement.className") == "skip"
    seen: list[str] = []
    while (text := browser.evaluate("document.activeElement.textContent")) != "Tasks":
        assert len(seen) < 20, seen
        seen.append(text)
        browser.press("Tab")
    browser.press("Enter")
    wait_until(lambda: browser.evaluate("location.pathname") == "/console/tasks")


def check_updates(browser: Chromium, url: str) -> None:
    """A page that is open shows later times by itself; paused it does not."""
    browser.open(f"{url}/console/tasks")
    browser.evaluate("window.stays = true")
    before = browser.evaluate("document.getElementById('tasks').innerHTML")
    wait_until(lambda: browser.evaluate("document.getElementById('tasks').innerHTML") != before)
    assert browser.evaluate("window.stays")
    browser.evaluate("document.getElementById('updates').click()")
    assert browser.evaluate("document.getElementById('updates').getAttribute('aria-pressed')") == "true"


def check_replay(browser: Chromium, url: str) -> None:
    browser.open(f"{url}/console/login")
    browser.follow(
        f"document.querySelector('[name=token]').value = {ACTIONS!r}; document.querySelector('main form').submit()"
    )
    browser.open(f"{url}/console/dead-letters")
    browser.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
    check(browser, "letters that may be replayed")
    button = "[...document.querySelectorAll('button')].find(each => each.textContent == 'Replay this letter')"
    asked = len(browser.requests)
    browser.follow(f"{button}.click(), setTimeout(() => {button}.click(), 20), 0")
    assert [each for each in browser.requests[asked:] if each.endswith("/replay")][1:], "clicked once only"
    assert browser.evaluate("document.querySelector('.done').textContent") == "Replayed: 1."
    browser.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
    assert "replayed" in browser.evaluate("document.querySelector('main').innerText").split()
    browser.follow("history.back()")  # the page may be one that the browser has kept, and is loaded again
    wait_until(lambda: "replayed" in browser.evaluate("document.querySelector('main').innerText").split())


def check_end_of_session(browser: Chromium, url: str) -> None:
    """A page that is open says so, and shows no new data."""
    browser.open(f"{url}/console/tasks")
    browser.evaluate("sessionStorage.clear()")
    browser.open(f"{url}/console/tasks")
    browser.call("Network.clearBrowserCookies")
    wait_until(lambda: "session has ended" in browser.evaluate("document.getElementById('connection').textContent"))
