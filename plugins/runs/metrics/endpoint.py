"""metrics_endpoint: the HTTP server from which Prometheus reads the counts of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from penstock import ConfigError, RuntimeUnavailableError, Settings
from penstock.plugins.applications.lag import PartitionLag
from penstock.plugins.applications.run_status import RunStatus

from .settings import METRICS_HOST, METRICS_PORT


@contextmanager
def metrics_endpoint(
    settings: Settings, status: Callable[[], RunStatus], lag: Callable[[], Sequence[PartitionLag]]
) -> Iterator[None]:
    """Serve what `status` and `lag` return, on `metrics_host` and `metrics_port`, until the end of the block.

    Without `metrics_port` nothing happens. Raises ConfigError when the port cannot be opened, and
    RuntimeUnavailableError when prometheus-client is not installed.
    """
    host, port = METRICS_HOST.of(settings), METRICS_PORT.of(settings)
    if not port:
        yield
        return
    try:
        from prometheus_client import CollectorRegistry, start_http_server
    except ModuleNotFoundError as error:
        raise RuntimeUnavailableError(
            "setting 'metrics_port' needs prometheus-client, which is not installed: pip install 'penstock[metrics]'"
        ) from error
    from .collector import RunCollector

    # Two runs in one process, on two ports, show their own counts each.
    registry = CollectorRegistry()
    registry.register(RunCollector(status, lag))
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise ConfigError(
            f"setting 'metrics_port': port {port} of {host} cannot be opened ({error.strerror or error}): set another "
            "port, or `metrics_host` to an address of this host"
        ) from error
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
