"""Real Kafka brokers for tests, demos and benchmarks: on loopback; they end with the process that started them.

`with KafkaBroker() as broker: ...` has an application on it with the setting `log=f"kafka:{broker.bootstrap}"`.

`python -m penstock.testing.kafka_broker --directory D` runs one until Ctrl-C.
"""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from penstock import RuntimeUnavailableError

from .kafka.broker import KafkaBroker
from .kafka.cluster import KafkaCluster
from .kafka.prepared import STARTS_FAST

__all__ = ["STARTS_FAST", "KafkaBroker", "KafkaCluster"]


def main() -> int:
    """Run a broker, or several, until Ctrl-C or SIGTERM."""
    parser = argparse.ArgumentParser(
        prog="python -m penstock.testing.kafka_broker",
        description="Runs a Kafka broker on 127.0.0.1 until Ctrl-C, and says at which port: 'ready: 127.0.0.1:PORT'.",
    )
    parser.add_argument("--directory", type=Path, help="where the data is kept (default: a temporary directory)")
    parser.add_argument(
        "--port", type=int, help="which port it listens at (default: a free one); only of a single broker"
    )
    parser.add_argument("--brokers", type=int, default=1, metavar="N", help="how many brokers (default: 1)")
    parser.add_argument("--heap", default="512m", help="of each broker's JVM (default: 512m)")
    parser.add_argument(
        "--option", type=_setting, action="append", default=[], metavar="NAME=VALUE", help="a setting of the brokers"
    )
    parser.add_argument("--for-load", action="store_true", help="have the JVM compile for throughput: starts slower")
    arguments = parser.parse_args()
    if arguments.port is not None and arguments.brokers != 1:
        parser.error("--port is for a single broker")
    given: dict[str, Any] = {
        "directory": arguments.directory,
        "heap": arguments.heap,
        "jvm_options": () if arguments.for_load else STARTS_FAST,
        "options": dict(arguments.option),
    }
    kafka: KafkaBroker | KafkaCluster
    if arguments.brokers == 1:
        kafka = KafkaBroker(port=arguments.port, **given)
    else:
        kafka = KafkaCluster(arguments.brokers, **given)
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    signal.signal(signal.SIGINT, lambda *_: ended.set())
    try:
        with kafka:
            print(f"ready: {kafka.bootstrap}", flush=True)
            while not ended.wait(1.0):
                pass  # a signal that comes just before a wait does not interrupt it
    except RuntimeUnavailableError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


if __name__ == "__main__":
    sys.exit(main())
