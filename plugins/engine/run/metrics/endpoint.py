"""metrics_endpoint: the HTTP server of a run, for Prometheus and for Kubernetes' probes, and the metrics it has."""

from __future__ import annotations

import errno
import json
import logging
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from penstock import ConfigError, Settings, SystemClock
from penstock.plugins.engine.program.lag import PartitionLag
from penstock.plugins.engine.program.run_status import RunStatus
from penstock.support.packages import needed

from ..companion import Companion
from ..settings import METRICS_HOST, METRICS_PORT

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

LIVE, READY, METRICS = "/health/live", "/health/ready", "/metrics"
_AGAIN_SECONDS = 1.0
"""Seconds between two tries to open a port that is in use."""

_log = logging.getLogger("penstock.runs")


class MetricsEndpoint(Companion):
    """The metrics of the run, and its health, on the port of the setting `metrics_port`."""

    def around(self) -> AbstractContextManager[object]:
        run = self.run
        return metrics_endpoint(run.application.settings, run.status, run.lag, waits=run.waits)


@contextmanager
def metrics_endpoint(
    settings: Settings,
    status: Callable[[], RunStatus],
    lag: Callable[[], Sequence[PartitionLag]],
    *,
    waits: bool = False,
) -> Iterator[None]:
    """Serve the results of `status` and `lag`, on `metrics_host` and `metrics_port`, until the end of the block.

    `/health/live` and `/health/ready` answer 200 or 503 with JSON; `/metrics` and `/` have the metrics; other paths are
    404, as a misspelt probe must not pass. Without `metrics_port` nothing happens. `waits`: another driver may have the
    port, which is then opened once free. Raises ConfigError if it cannot be opened, and MissingPackageError.
    """
    host, port = METRICS_HOST.of(settings), METRICS_PORT.of(settings)
    if not port:
        yield
        return
    with needed("setting 'metrics_port'", "metrics"):
        from prometheus_client import CollectorRegistry, make_wsgi_app

        from .collector import RunCollector

    # Two runs in one process, on two ports, show their own counts each.
    registry = CollectorRegistry()
    registry.register(RunCollector(status, lag))
    endpoint = _Endpoint(lambda: _server(host, port, _with_health(make_wsgi_app(registry), status)))
    try:
        endpoint.open()
    except OSError as error:
        if not (waits and error.errno == errno.EADDRINUSE):
            raise ConfigError(
                f"setting 'metrics_port': port {port} of {host} cannot be opened ({error.strerror or error}): set "
                "another port, or `metrics_host` to an address of this host"
            ) from error
        _log.warning(
            "setting 'metrics_port': port %d of %s is in use now, as by the driver that this run waits for: its own "
            "metrics and health are served there once the port is free; with a port of its own they are served at once",
            port, host,
        )  # fmt: skip
    endpoint.start()
    try:
        yield
    finally:
        endpoint.close()


class _Endpoint(threading.Thread):
    """Serves the WSGI application of `make` until `close`. It waits while its port is in use."""

    def __init__(self, make: Callable[[], WSGIServer]) -> None:
        super().__init__(name="penstock-metrics", daemon=True)
        self._make = make
        self._server: WSGIServer | None = None
        self._has_ended = threading.Event()
        self._opening = threading.Lock()

    def open(self) -> None:
        """Open the port. Raises OSError."""
        with self._opening:
            if not self._has_ended.is_set():
                self._server = self._make()

    def run(self) -> None:
        while self._server is None and not self._has_ended.wait(_AGAIN_SECONDS):
            with suppress(OSError):
                self.open()
        if self._server is not None:
            self._server.serve_forever()

    def close(self) -> None:
        """End it, and free the port."""
        with self._opening:
            self._has_ended.set()
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
        self.join()


def _with_health(metrics: WSGIApplication, status: Callable[[], RunStatus]) -> WSGIApplication:
    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        path = environ["PATH_INFO"].rstrip("/")
        if path in ("", METRICS):
            return metrics(environ, start_response)
        if path not in (LIVE, READY):
            start_response("404 Not Found", [("Content-Type", "text/plain")])
            return [f"there is {METRICS}, {LIVE} and {READY}\n".encode()]
        now = status()
        health = now.health(SystemClock().now_ms())
        is_well = health.is_live if path == LIVE else health.is_ready
        start_response(
            "200 OK" if is_well else "503 Service Unavailable",
            [("Content-Type", "application/json"), ("Cache-Control", "no-store")],
        )
        return [json.dumps(now.health_data(health)).encode() + b"\n"]

    return answer


class _Handler(WSGIRequestHandler):
    timeout = 10
    """Seconds; a client that sends nothing keeps no thread for longer."""

    def log_message(self, format: str, *args: object) -> None:
        """Log no requests."""


def _server(host: str, port: int, application: WSGIApplication) -> WSGIServer:
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]

    class Server(ThreadingMixIn, WSGIServer):
        address_family = family
        daemon_threads = True

    return make_server(host, port, application, Server, _Handler)
