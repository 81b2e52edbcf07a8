"""Clients of the server of queries: by TLS, many at once, and such that send and take nothing."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from socket import create_connection, create_server
from threading import Thread
from threading import enumerate as enumerate_threads
from typing import ClassVar
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import psutil
import pytest

from penstock import ConfigError, StoreUnavailableError
from penstock.client import AsyncClient, Client, QueryError
from penstock.plugins.state.queries.http.forwarding import Connections

from ..waiting import wait_until
from .served import served
from .test_kinds import Asked


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asked]:
    with closing(Asked(tmp_path_factory.mktemp("app"))) as made:
        made.writer.commit([("a", "1"), ("b", "2")])
        yield made


def certificate(directory: Path) -> tuple[Path, Path]:
    """Write a certificate for 127.0.0.1 that is its own authority, and its key."""
    x509 = pytest.importorskip("cryptography.x509")
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "penstock")])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    files = directory / "cert.pem", directory / "key.pem"
    files[0].write_bytes(made.public_bytes(serialization.Encoding.PEM))
    plain = serialization.NoEncryption()
    files[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain))
    return files


def test_tls(asked: Asked, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cert, key = certificate(tmp_path)
    with served(asked.here, certificate=cert, private_key=key) as url:
        assert url.startswith("https://127.0.0.1:")
        with Client(url, context=ssl.create_default_context(cafile=cert)) as client:
            found = client.store("plain").get("a")
            assert found is not None and found.value == "1"
            with client.store("plain").changes("b") as changes:
                asked.writer.commit([("b", "3")])
                assert next(changes).value == "3"
        with Client(url) as stranger, pytest.raises(QueryError, match="certificate verify failed"):
            stranger.store("plain").get("a")
        with Client(url.replace("https", "http")) as plain, pytest.raises(QueryError, match="does not answer"):
            plain.store("plain").get("a")
        with served(asked.here) as plain_url:
            for other in (url, plain_url.replace("http:", "https:")):
                connections = Connections(other)
                for _ in range(2):
                    assert asyncio.run(connections.ask("GET", "/health/live", [], b"")) is None
                said = [each.getMessage() for each in caplog.records if other in each.getMessage()]
                assert len(said) == 1 and said[0].startswith(f"{other} cannot be asked by TLS ("), said
    wrong = pytest.raises(ConfigError, match="the certificate or its key cannot be used")
    with wrong, served(asked.here, certificate=cert, private_key=cert):
        pass


class Proxy(BaseHTTPRequestHandler):
    """Passes requests on to `server`, after it has said once for each of `away` that the server is away."""

    server_url: ClassVar[str]
    away: ClassVar[list[int]]

    def do_GET(self) -> None:
        if self.away:
            self.send_response(self.away.pop())
            self.end_headers()
            self.wfile.write(b"<html>it is away</html>")
            return
        with urlopen(Request(f"{self.server_url}{self.path}", headers=dict(self.headers))) as answer:
            self.send_response(200)
            self.end_headers()
            with suppress(OSError):  # the client has left
                while line := answer.readline():
                    self.wfile.write(line)

    def log_message(self, *given: object) -> None:
        """Say nothing."""


def test_a_proxy_that_says_that_the_server_is_away(asked: Asked) -> None:
    with served(asked.here) as url:

        class Proxying(Proxy):
            server_url = url
            away: ClassVar[list[int]] = [504, 502]

        with ThreadingHTTPServer(("127.0.0.1", 0), Proxying) as proxy:
            proxy.daemon_threads = True
            Thread(target=proxy.serve_forever, daemon=True).start()
            with Client(f"http://127.0.0.1:{proxy.server_port}") as client:
                changes = client.store("plain").changes("b")
                assert Proxying.away == []
                asked.writer.commit([("b", "5")])
                assert next(changes).value == "5"
                changes.close()
                Proxying.away = [503]
                with pytest.raises(StoreUnavailableError, match="it answered 503"):
                    client.store("plain").get("a")
            proxy.shutdown()


def test_a_stream_that_is_left_while_it_opens_keeps_no_thread() -> None:
    """The server has taken the connection, and does not answer."""
    before = set(enumerate_threads())
    with create_server(("127.0.0.1", 0)) as silent, ExitStack() as stack:

        async def leave() -> None:
            async with AsyncClient(f"http://127.0.0.1:{silent.getsockname()[1]}", timeout="10m") as client:
                opening = asyncio.ensure_future(anext(client.store("plain").changes()))
                stack.enter_context((await asyncio.to_thread(silent.accept))[0])
                opening.cancel()
                with suppress(asyncio.CancelledError):
                    await opening

        asyncio.run(leave())
        wait_until(lambda: set(enumerate_threads()) <= before, "its thread ends")


def test_a_stream_that_ends_with_its_connection_is_left_at_once() -> None:
    """A proxy answers so. The thread that reads has the answer's lock for as long as the server says nothing."""
    with create_server(("127.0.0.1", 0)) as silent, ExitStack() as stack:

        def answer() -> None:
            connection = stack.enter_context(silent.accept()[0])
            connection.recv(65_536)
            connection.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nevent: begin\nid: x\ndata: {}\n\n")

        Thread(target=answer, daemon=True).start()
        with Client(f"http://127.0.0.1:{silent.getsockname()[1]}", timeout="10m") as client:
            changes = client.store("plain").changes()
            threads = [Thread(target=act, daemon=True) for act in (lambda: next(changes, None), changes.close)]
            for each in threads:
                each.start()
            wait_until(lambda: not any(each.is_alive() for each in threads), "both end")


def test_many_clients_at_once_and_idle_ones(asked: Asked) -> None:
    me = psutil.Process()
    with served(asked.here) as url:
        with Client(url) as client:
            client.store("plain").get("a")
        before = me.num_fds()
        place = urlsplit(url)
        with ExitStack() as stack:
            for number in range(400):
                idle = stack.enter_context(create_connection((place.hostname, place.port)))
                # Nothing, half of a request, and a request whose answer is not read.
                idle.sendall(
                    (b"", b"GET /v1/st", f"GET /v1/stores HTTP/1.1\r\nHost: {place.netloc}\r\n\r\n".encode())[
                        number % 3
                    ]
                )
            with Client(url) as client, ThreadPoolExecutor(16) as threads:
                store = client.store("plain")
                found = list(threads.map(lambda key: store.get(key), ["a", "x"] * 200))
                assert [each and each.value for each in found] == ["1", None] * 200
        wait_until(lambda: me.num_fds() <= before, "all connections are closed")


@pytest.mark.parametrize(
    "url",
    ["http://me:s3cret@127.0.0.1:1", "https://s3cret@[::1]:1/x", "http://127.0.0.1:1/?s3cret", "http://h:1#s3cret",
     "ftp://s3cret/", "s3cret"],
)  # fmt: skip
def test_a_url_that_may_have_a_secret_is_refused_and_not_shown(url: str) -> None:
    """Errors show the URL of a server, and its user was never sent."""
    for made in (Client, AsyncClient):
        with pytest.raises(ConfigError, match="^url: expected http://HOST:PORT") as raised:
            made(url)
        assert "s3cret" not in str(raised.value)
