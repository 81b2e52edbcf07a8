"""The connections by which a server asks another one."""

from __future__ import annotations

import asyncio
from contextlib import closing, suppress

import pytest
import uvloop

from penstock.plugins.state.queries.http.forwarding import Answer, Connections

GOOD = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"


class Peer:
    """A server that answers the requests of each connection by `answers`, and then closes it; `seen`: how many."""

    def __init__(self, *answers: bytes) -> None:
        self.answers = answers
        self.seen = self.ended = 0
        self.heads: list[bytes] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.seen += 1
        with suppress(asyncio.IncompleteReadError):
            for each in self.answers:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
                self.heads.append(head + await reader.readexactly(length))
                writer.write(each)
        writer.close()
        await writer.wait_closed()
        self.ended += 1


def asked(peer: Peer, times: int, body: bytes = b"") -> list[Answer | None]:
    """Ask a peer so many times, one after the other."""

    async def run() -> list[Answer | None]:
        server = await asyncio.start_server(peer.serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server:
            with closing(Connections(f"http://127.0.0.1:{port}/below")) as connections:
                found = [await connections.ask("GET", "/x?key=1", [("accept", "any")], body) for _ in range(times)]
            while peer.ended < peer.seen:
                await asyncio.sleep(0)
            return found

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run())


def test_a_connection_is_used_again_and_replaced_when_the_server_has_closed_it() -> None:
    peer = Peer(GOOD, GOOD)
    assert asked(peer, 5, b"[1]") == [(200, b"{}")] * 5
    assert peer.seen == 3, "two requests on each"
    assert peer.heads[0].startswith(b"GET /below/x?key=1 HTTP/1.1\r\nhost: 127.0.0.1:")
    assert peer.heads[0].endswith(b"\r\naccept: any\r\n\r\n[1]")


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (b"HTTP/1.1 404 No\r\ntransfer-encoding: chunked\r\n\r\n2\r\n[]\r\n1\r\n \r\n0\r\n\r\n", (404, b"[] ")),
        (b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 1\r\n\r\n1", (200, b"1")),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf", None),
        (b"no HTTP", None),
        (b"", None),
    ],
)
def test_answers_and_what_is_none(answer: bytes, expected: Answer | None) -> None:
    assert asked(Peer(answer), 2) == [expected] * 2


def test_a_server_that_is_not_there() -> None:
    async def run() -> Answer | None:
        server = await asyncio.start_server(Peer().serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        server.close()
        await server.wait_closed()
        return await Connections(f"http://127.0.0.1:{port}").ask("GET", "/", [], b"")

    assert asyncio.run(run()) is None
