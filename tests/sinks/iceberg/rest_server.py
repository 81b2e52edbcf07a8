"""A REST catalog over a SQL catalog: as much of Iceberg's REST specification as a sink needs, requirements included."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, NoSuchNamespaceError, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.schema import Schema
from pyiceberg.table import CommitTableRequest


class _Handler(BaseHTTPRequestHandler):
    catalog: SqlCatalog
    protocol_version = "HTTP/1.1"

    def _answer(self, status: int, body: Any = None) -> None:
        data = b"" if body is None else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _fail(self, status: int, error: Exception) -> None:
        body = {"message": str(error), "type": type(error).__name__, "code": status}
        self._answer(status, {"error": body})

    def _name(self) -> tuple[str, str]:
        parts = self.path.split("?")[0].strip("/").split("/")  # v1/namespaces/NAMESPACE/tables/TABLE
        return parts[2], parts[4] if len(parts) > 4 else ""

    def do_GET(self) -> None:
        if self.path.startswith("/v1/config"):
            self._answer(200, {"defaults": {}, "overrides": {}})
            return
        namespace, name = self._name()
        try:
            if name:
                self._answer(200, _loaded(self.catalog.load_table((namespace, name))))
            else:
                properties = self.catalog.load_namespace_properties(namespace)
                self._answer(200, {"namespace": [namespace], "properties": properties})
        except (NoSuchTableError, NoSuchNamespaceError) as error:
            self._fail(404, error)

    def do_POST(self) -> None:
        given = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if given.get("stage-create"):
            self._fail(501, NotImplementedError("a table with partitions is not made here"))
            return
        try:
            self._answer(200, self._commit(given) if self._name()[1] else self._create(given))
        except (CommitFailedException, TableAlreadyExistsError) as error:
            self._fail(409, error)

    def _create(self, given: Any) -> Any:
        schema = Schema.model_validate(given["schema"])
        return _loaded(self.catalog.create_table((self._name()[0], given["name"]), schema))

    def _commit(self, given: Any) -> Any:
        request = CommitTableRequest.model_validate({"identifier": {"namespace": [], "name": ""}, **given})
        table = self.catalog.load_table(self._name())
        answer = self.catalog.commit_table(table, request.requirements, request.updates)
        return json.loads(answer.model_dump_json(by_alias=True))

    def log_message(self, format: str, *arguments: Any) -> None:
        """Write no log."""


def _loaded(table: Any) -> Any:
    metadata = json.loads(table.metadata.model_dump_json(by_alias=True))
    return {"metadata-location": table.metadata_location, "metadata": metadata, "config": {}}


@contextmanager
def rest_server(**options: str) -> Iterator[str]:
    """Run a server over the SQL catalog of these options; its URL reaches it."""
    catalog = SqlCatalog("tests", **options)
    handler = type("Handler", (_Handler,), {"catalog": catalog})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
            catalog.close()
