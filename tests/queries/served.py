"""A server of queries in a thread of the test."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlencode, urlsplit

from penstock.plugins.state.queries.http.guard import Address
from penstock.plugins.state.queries.http.server import Server, ServerOptions, open_socket, url_of
from penstock.queries import Queries

LOOPBACK = Address("127.0.0.1", 0)


@contextmanager
def served(queries: Queries, **options: Any) -> Iterator[str]:
    """Serve queries on a free port; return the URL."""
    given = ServerOptions(**{"address": LOOPBACK, **options})
    with open_socket(given, "--listen") as listening:
        server = Server(queries, given, listening)
        thread = threading.Thread(target=server.run, name="test-server")
        thread.start()
        try:
            yield url_of(listening, given)
        finally:
            server.stop()
            thread.join()


def ask(url: str, path: str, *, method: str = "GET", body: bytes | None = None, given: Any = (), **headers: str) -> Any:
    """Return status and JSON of an answer, with headers as `host=`, `authorization=`; `given`: the query."""
    query = urlencode(given)
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    try:
        connection.request(method, path + (f"?{query}" if query else ""), body, headers)
        response = connection.getresponse()
        data = response.read()
        return response.status, json.loads(data) if response.headers["Content-Type"] == "application/json" else data
    finally:
        connection.close()
