"""Readers of every kind beside an application that runs: good, slow, broken, many, malicious, of another program.

`python -m tests.surface.readers --seconds 3600 --seed 1` is a soak.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import socket
import struct
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import psutil

from penstock import PenstockError, Processor, Record, Topology, key_value_store
from penstock.client import AsyncClient, Client, QueryError
from penstock.queries import Queries

from ..spark.surroundings import Surroundings
from ..waiting import wait_until

KEYS = [f"k{number}" for number in range(9)] + ["", "ä/ö?", "a b", '{"$tuple": 1}']
TOKEN = "the-token-of-readers"
_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER, so that a close is a reset."""
_SECONDS = 20.0
"""After which a reader that is answered nothing leaves."""


class Count(Processor):
    """Counts each key."""

    def process(self, record: Record) -> None:
        store = self.context.get_store("counts")
        count = (store.get(record.key) or 0) + 1
        store.put(record.key, count)
        self.context.forward(record.with_value(str(count)))


def topology(value_serde: str = "int") -> Topology:
    """Return the program; another value serde makes it another program, which cannot read this one's values."""
    return (
        Topology()
        .add_source("in", "in", key_serde="str")
        .add_processor("count", Count, "in")
        .add_store(key_value_store("counts", key_serde="str", value_serde=value_serde), "count")
        .add_sink("out", "out", "count", key_serde="str", value_serde="str")
    )


@dataclass
class Round:
    """What readers of one run share. Each key was counted `least` times at least, and put `most` times."""

    host: str
    port: int
    chance: random.Random
    other: Queries
    least: int = 0
    most: int = 0
    ends: threading.Event = field(default_factory=threading.Event)
    wrong: list[str] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    done: Counter[str] = field(default_factory=Counter)

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    def check(self, holds: bool, said: str) -> None:
        """Note what is wrong."""
        if not holds:
            self.wrong.append(said)

    def connect(self) -> socket.socket:
        """Return a connection to the server."""
        return socket.create_connection((self.host, self.port), timeout=_SECONDS)

    def status(self, request: bytes) -> int:
        """Send a request, and return the status of the answer; 0 if the server has closed the connection."""
        with self.connect() as connection, suppress(OSError):
            connection.sendall(request)
            answer = connection.recv(64)
            found = int(answer[9:12]) if answer.startswith(b"HTTP/1.") else 0
            self.statuses[found] += 1
            return found
        return 0


Reader = Callable[[Round, random.Random], None]


def head(target: str, *lines: str, method: str = "GET", token: str = TOKEN) -> bytes:
    """Return the head of a request."""
    given = [f"{method} {target} HTTP/1.1", "Host: 127.0.0.1", f"Authorization: Bearer {token}", *lines, "", ""]
    return "\r\n".join(given).encode("utf-8", "surrogateescape")


def good(given: Round, chance: random.Random) -> None:
    """Ask for keys, and for all entries: counts that were committed, never an older one after a later one."""
    last: dict[str, int] = {}
    with Client(given.url, token=TOKEN) as client:
        store = client.store("counts")
        while not given.ends.is_set():
            least = given.least
            key = chance.choice(KEYS)
            with suppress(QueryError):  # 503 while the run begins
                found = store.get(key)
                value = 0 if found is None else found.value
                given.check(least <= value <= given.most, f"{key!r} is {value}, not {least} to {given.most}")
                given.check(last.get(key, 0) <= value, f"{key!r} was {last.get(key)}, and is {value} later")
                last[key] = value
                given.done["good"] += 1
                if chance.random() < 0.1:
                    keys = list(_keys(client, chance.randrange(1, 6)))
                    given.check(len(keys) == len(set(keys)), f"pages have a key twice: {keys}")
                    given.check(least == 0 or sorted(keys) == sorted(KEYS), f"pages have the keys {keys}")


def _keys(client: Client, limit: int) -> Iterator[str]:
    """Yield the keys of all entries, by pages of so many."""
    page: list[tuple[str, str]] = []
    while True:
        answer = client.request("/v1/stores/counts/entries", [("limit", str(limit)), *page])
        yield from (each["key"] for each in answer["entries"])
        if (next_page := answer["page"]) is None:
            return
        page = [("page", next_page)]


def follower(given: Round, chance: random.Random) -> None:
    """Follow changes of several processors of asyncio at once, and leave again and again."""

    async def follow() -> None:
        async with AsyncClient(given.url, token=TOKEN) as client:
            last: dict[str, int] = {}
            with suppress(PenstockError, TimeoutError):
                async with asyncio.timeout(chance.uniform(0.1, 4.0)):
                    async for each in client.store("counts").changes():
                        given.check(last.get(each.key, 0) < each.value, f"changes of {each.key!r}: {each.value} again")
                        last[each.key] = each.value
                        given.done["follower"] += 1

    async def several() -> None:
        await asyncio.gather(*(follow() for _ in range(3)))

    while not given.ends.is_set():
        asyncio.run(several())


def slow(given: Round, chance: random.Random) -> None:
    """Open a stream of changes and read nothing of it."""
    with given.connect() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        connection.sendall(head("/v1/stores/counts/changes"))
        given.ends.wait()
        given.done["slow"] += 1


def half(given: Round, chance: random.Random) -> None:
    """Send half of a request, and stay."""
    whole = head("/v1/stores/counts/get", "Content-Length: 20", method="POST") + b'{"keys": ["k1"]}'
    with given.connect() as connection:
        connection.sendall(whole[: chance.randrange(len(whole))])
        given.ends.wait()
        given.done["half"] += 1


def leaving(given: Round, chance: random.Random) -> None:
    """Ask, and reset the connection at once or within the answer."""
    while not given.ends.is_set():
        with given.connect() as connection, suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            connection.sendall(head(chance.choice(["/v1/stores/counts/entries", "/v1/stores/counts/changes"])))
            if chance.random() < 0.5:
                connection.recv(1)
        given.done["leaving"] += 1
        given.ends.wait(0.02)


def broken(given: Round, chance: random.Random) -> None:
    """Ask what makes no sense, or may do harm; the answer refuses it."""
    store = "/v1/stores/counts"
    while not given.ends.is_set():
        noise = "".join(chr(chance.choice([*range(1, 0x30), *range(0x41, 0x7F), 0xE4, 0x2028])) for _ in range(12))
        key = quote(noise)
        asked, expected = chance.choice([
            (head(f"{store}/changes", f"Last-Event-ID: {quote(noise)}"), {400}),
            (head(f"{store}/changes", "Last-Event-ID: 0_0:18446744073709551616"), {400}),
            (head(f"{store}/entries?page={key}"), {400, 410}),
            (head(f"{store}/entries?limit={chance.choice(['-1', '0', 'x', '9' * 30])}"), {400}),
            (head(f"{store}/get?key={key}"), {400, 404}),
            (head(f"{store}/get?key=k1&at_least={key}"), {400}),
            (head(f"{store}/get?key=k1&wait={chance.choice(['nan', '-1', 'inf', '1e400'])}"), {400}),
            (head(f"{store}/get?key=k1&as_of=1"), {400}),
            (head("/v1/stores/..%2f..%2fcounts/get?key=k1"), {404}),
            (head(f"/v1/stores/{key}/get?key=k1"), {404}),
            (head(f"{store}/get?key=k1", token=f"{TOKEN}x"), {401}),
            (head(f"{store}/get?key=k1", token=""), {401}),
            (head(f"{store}/get", "Content-Length: 12", method="POST") + noise.encode()[:12], {400}),
            (head(f"{store}/get", "Content-Length: 13", method="POST") + b'{"keys": [{}]', {400}),
            (head(f"{store}/get", "Content-Length: 99999999999", method="POST"), {408}),
            (head(f"{store}/get?key=k1", method="DELETE"), {405}),
            (head(f"{store}/{chance.choice(['get?key=k1', 'entries', 'changes'])}", method="HEAD"), {200, 503}),
            (head(f"{store}/get?key=k%{chance.randrange(0x80, 0x100):X}"), {400}),
            (noise.encode() + b"\r\n\r\n", {0, 400}),
        ])  # fmt: skip
        found = given.status(asked)
        given.check(found in expected, f"{asked!r}: {found}, not {sorted(expected)}")
        given.done["broken"] += 1


def of_another_program(given: Round, chance: random.Random) -> None:
    """Read with the serdes of another program: refused, or the right value."""
    while not given.ends.is_set():
        try:
            found = given.other.store("counts").get(chance.choice(KEYS))
        except PenstockError:
            given.done["refused"] += 1
        else:
            given.check(found is None or 0 < found <= given.most, f"another program reads {found!r}")
        given.ends.wait(0.05)


MANY = [
    good,
    good,
    good,
    follower,
    follower,
    slow,
    slow,
    half,
    half,
    leaving,
    leaving,
    broken,
    broken,
    of_another_program,
]


@contextmanager
def _told_errors(wrong: list[str]) -> Iterator[None]:
    """Note errors that are logged, and those of threads."""

    class Told(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            wrong.append(f"logged: {record.getMessage()}")

    handler, hook = Told(logging.ERROR), threading.excepthook
    logging.getLogger().addHandler(handler)

    def failed(args: threading.ExceptHookArgs, /) -> None:
        wrong.append(f"thread {args.thread}: {args.exc_type.__name__}: {args.exc_value}")

    threading.excepthook = failed
    try:
        yield
    finally:
        threading.excepthook = hook
        logging.getLogger().removeHandler(handler)


def read_beside_a_run(directory: Path, seconds: float, seed: int, readers: int = 20) -> Round:
    """Run an application with readers for so many seconds; what is `wrong` afterwards should be nothing."""
    chance, process = random.Random(seed), psutil.Process()
    with Surroundings(directory / "data") as surroundings:
        surroundings.create(**{"in": 3, "out": 3})
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        given = {
            "queries": f"127.0.0.1:{port}",
            "queries_token": TOKEN,
            "engine": "embedded",
            "commit_interval": "5ms",
            "changelog": ["directory:changelog", "topic:"][seed % 2],
        }
        application = surroundings.application("app", topology(), **given)
        other = surroundings.application("app", topology("str"), **{**given, "queries": None, "queries_token": None})
        with application.start("continuous") as running, Queries.of_this_machine(other) as queries:
            made = Round("127.0.0.1", port, chance, queries)
            with _told_errors(made.wrong):
                _read(made, surroundings, seconds, readers)

            def connections() -> int:
                """Return how many this process has with the server; earlier tests may have left others."""
                return sum(port in (*each.laddr[1:], *each.raddr[1:]) for each in process.net_connections("tcp"))

            wait_until(lambda: connections() <= 2 + readers, "connections end")
            running.stop()
        counted = surroundings.values_by_key("out")
        expected = {key: [str(each + 1) for each in range(made.most)] for key in KEYS}
        made.check(counted == expected, f"the outputs are {counted}")
    return made


def _read(made: Round, surroundings: Surroundings, seconds: float, readers: int) -> None:
    kinds = [*MANY, *made.chance.choices(MANY, k=max(0, readers - len(MANY)))]
    threads = [
        threading.Thread(target=each, args=(made, random.Random(made.chance.random())), name=f"reader {each.__name__}")
        for each in kinds
    ]
    for each in threads:
        each.start()
    try:
        until = time.monotonic() + seconds
        with Client(made.url, token=TOKEN) as client:
            while time.monotonic() < until or made.most < 3:  # the first round may take long on a busy machine
                made.most += 1
                for key in made.chance.sample(KEYS, len(KEYS)):  # so commits with other keys follow each other closely
                    surroundings.put("in", [(key, "v", made.most)])
                    made.ends.wait(0.01)

                def are_counted() -> bool:
                    with suppress(QueryError):
                        found = client.store("counts").get_many(KEYS)
                        return all(each is not None and each.value == made.most for each in found)
                    return False

                wait_until(are_counted, f"round {made.most} is answered beside the readers")
                made.least = made.most
    finally:
        made.ends.set()
        for each in threads:
            each.join(60)
    made.check(
        not any(each.is_alive() for each in threads), f"{[each.name for each in threads if each.is_alive()]} hang"
    )


def main() -> int:
    """Read for `--seconds`, in runs of a minute each, and print what each found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    until = time.monotonic() + given.seconds
    seed = given.seed
    while time.monotonic() < until:
        with tempfile.TemporaryDirectory(prefix="penstock-readers-") as place:
            found = read_beside_a_run(Path(place), min(60.0, given.seconds), seed)
        print(f"seed {seed}: {found.most} rounds, {dict(found.done)}, statuses {dict(found.statuses)}", flush=True)
        if found.wrong:
            print(*found.wrong[:20], sep="\n")
            return 1
        seed += 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
