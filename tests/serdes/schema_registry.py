"""A small schema registry that speaks Confluent's protocol, with BACKWARD compatibility, in this process."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

from .compatibility import differences


class Refused(Exception):
    """An answer with an error: the HTTP status, the registry's code, and the message."""

    def __init__(self, status: int, code: int, message: str) -> None:
        super().__init__(message)
        self.status, self.code = status, code


class SchemaRegistry:
    """The registry. `lie`, if set, is the answer to everything: a status and a text. `asked` has each request."""

    def __init__(self) -> None:
        self.schemas: list[dict[str, Any]] = []  # by id, from 1
        self.subjects: dict[str, list[int]] = {}
        self.lie: tuple[int, str] | None = None
        self.asked: list[str] = []
        self.url = ""

    def answer(self, method: str, path: str, body: dict[str, Any]) -> Any:
        """Return the answer to a request. Raises Refused."""
        if found := re.fullmatch(r"/schemas/ids/(\d+)", path):
            if not 1 <= int(found[1]) <= len(self.schemas):
                raise Refused(404, 40403, f"Schema {found[1]} not found")
            return self.schemas[int(found[1]) - 1]
        if found := re.fullmatch(r"/subjects/([^/]+)(/versions)?(/latest|/\d+)?", path):
            subject, versions, version = unquote(found[1]), found[2], found[3]
            if method == "POST":
                number = self._register(subject, body) if versions else self._lookup(subject, body)
                return self._registered(subject, self.subjects[subject].index(number) + 1)
            if subject not in self.subjects:
                raise Refused(404, 40401, f"Subject '{subject}' not found.")
            if version is not None:
                last = len(self.subjects[subject])
                return self._registered(subject, last if version == "/latest" else int(version[1:]))
            return list(range(1, len(self.subjects[subject]) + 1))
        raise Refused(404, 404, "HTTP 404 Not Found")

    def _registered(self, subject: str, version: int) -> dict[str, Any]:
        number = self.subjects[subject][version - 1]
        return {"subject": subject, "version": version, "id": number, **self.schemas[number - 1]}

    def _lookup(self, subject: str, schema: dict[str, Any]) -> int:
        if subject not in self.subjects:
            raise Refused(404, 40401, f"Subject '{subject}' not found.")
        if schema in self.schemas and self.schemas.index(schema) + 1 in self.subjects[subject]:
            return self.schemas.index(schema) + 1
        raise Refused(404, 40403, "Schema not found")

    def _register(self, subject: str, schema: dict[str, Any]) -> int:
        versions = self.subjects.get(subject, [])
        if schema in self.schemas and (number := self.schemas.index(schema) + 1) in versions:
            return number
        if versions:
            before, kind = self.schemas[versions[-1] - 1], schema.get("schemaType", "AVRO")
            if found := differences(kind, schema["schema"], before["schema"]):
                said = "Schema being registered is incompatible with an earlier schema for subject"
                raise Refused(409, 409, f'{said} "{subject}", details: {found}')
        if schema not in self.schemas:
            self.schemas.append(schema)
        number = self.schemas.index(schema) + 1
        self.subjects.setdefault(subject, []).append(number)
        return number


@contextmanager
def running() -> Iterator[SchemaRegistry]:
    """Serve a registry on a port of this machine."""
    registry = SchemaRegistry()

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length) or b"{}")
            path = urlsplit(self.path).path
            registry.asked.append(f"{self.command} {path}")
            if registry.lie is not None:
                status, text = registry.lie
            else:
                try:
                    # Confluent's client sends what it does not know as null.
                    sent = {name: each for name, each in body.items() if each not in (None, [])}
                    status, text = 200, json.dumps(registry.answer(self.command, path, sent))
                except Refused as error:
                    status, text = error.status, json.dumps({"error_code": error.code, "message": str(error)})
            self.send_response(status)
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        do_GET = do_POST = _answer

        def log_message(self, *arguments: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    registry.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield registry
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
