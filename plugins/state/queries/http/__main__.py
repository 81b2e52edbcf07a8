"""The process of a server beside a run: answers on a socket that it inherits, until its standard input ends."""

from __future__ import annotations

import socket
import sys
import threading

from penstock.plugins.engine.task.process_resources import tune_garbage_collector_to_answer
from penstock.plugins.engine.task.shipping import unpack

from ..queries import Queries
from .server import Server, ServerCargo


def main() -> None:
    """Serve the cargo on standard input, on the socket whose descriptor is the argument."""
    sys.setswitchinterval(0.001)  # the event loop waits for threads that read ranges no longer than this
    listening = socket.socket(fileno=int(sys.argv[1]))
    stdin = sys.stdin.buffer
    cargo: ServerCargo = unpack(stdin.read(int.from_bytes(stdin.read(8), "big")))
    application = cargo.application
    names = cargo.options.names(Queries.followed_stores(application)) if not cargo.is_local else []
    queries = (
        Queries.of_this_machine(application) if cargo.is_local else Queries.from_changelog(application, stores=names)
    )
    with queries:
        server = Server(queries, cargo.options, listening, cargo.own)
        tune_garbage_collector_to_answer()

        def stop_at_end() -> None:
            stdin.read()  # the process of the run has ended, or has closed it
            server.stop()

        threading.Thread(target=stop_at_end, daemon=True).start()
        server.run()


if __name__ == "__main__":
    main()
