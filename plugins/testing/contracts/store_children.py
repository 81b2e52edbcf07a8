"""What other processes do in the tests of store backends: they are killed, read, write beside another, find no room.

They import this module, so it imports little.
"""

from __future__ import annotations

import builtins
import io
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from penstock import StaleStoreError, StoreBackend, StoreBackendFactory, StoreError, StoreLockedError
from penstock.store import Changes

from .child import Step, act_in_steps, act_until_killed, without_room

STORES = ("first", "second")

_BOOT_ID = "/proc/sys/kernel/random/boot_id"

REFUSALS = ("StaleStoreError", "StoreLockedError")
"""What a write raises that comes too late."""


def read_all(backend: StoreBackend, stores: Sequence[str] = STORES) -> tuple[str | None, dict[str, dict[bytes, bytes]]]:
    """Return the version, and the rows that a scan of each store yields."""
    return backend.version(), {store: dict(backend.range(store)) for store in stores}


def write_until_killed(
    connection: Connection,
    opener: StoreBackendFactory,
    directory: Path,
    version: str | None,
    small: tuple[Changes, str] | None,
    large: tuple[Changes, str] | None,
    action: str,
    place: Step | None,
) -> None:
    """Write `small`, then act and kill this process at a step of that; send how many steps there are if it survives."""

    def watched(act: Callable[[], object]) -> None:
        act_until_killed(connection, act, place)

    if action == "open":
        with TemporaryDirectory() as other, closing(opener(Path(other), STORES)) as warm:
            warm.write({}, None, "v")  # a library that is imported late is not what is to be killed
        watched(lambda: opener(directory, STORES))
        return
    backend: StoreBackend = opener(directory, STORES)
    if small is not None:
        backend.write(small[0], version, small[1])
        version = small[1]
        connection.send("committed")
    if large is not None:
        watched(lambda: backend.write(large[0], version, large[1]))
    else:
        watched(backend.close if action == "close" else backend.destroy)


def write_when_told(connection: Connection, opener: StoreBackendFactory, directory: Path) -> None:
    """Do what is ordered until the connection ends."""
    backend: StoreBackend | None = None
    while True:
        try:
            order, *given = connection.recv()
        except EOFError:
            return
        if order == "open":
            if backend is not None:
                backend.close()
            backend = None
            try:
                backend = opener(directory, STORES)
            except StoreLockedError as error:
                connection.send(type(error).__name__)
            else:
                read_all(backend)
                connection.send(backend.version())
            continue
        assert backend is not None, f"the test sent {order!r} before it opened a backend"
        if order in ("close", "destroy"):
            getattr(backend, order)()
            connection.send("done")
        elif order == "write":
            connection.send(_outcome(backend, *given))
        else:
            changes, previous, version, place = given
            connection.send(_in_steps(connection, partial(_outcome, backend, changes, previous, version), place))


def write_much(
    connection: Connection, opener: StoreBackendFactory, directory: Path, changes: Changes, most: int
) -> None:
    """Write after "v1", and wait for an order at about `most` steps of that, which a first write has shown."""
    with TemporaryDirectory() as other, closing(opener(Path(other), STORES)) as first:
        first.write({"first": []}, None, "v1")
        steps = list(act_in_steps(lambda: first.write(changes, "v1", "v2"), [], lambda: None).items())
        first.destroy()
    places = [Step(*call, times // 2 + 1) for call, times in steps]
    backend = opener(directory, STORES)

    def stop() -> None:
        connection.send("stopped")
        connection.recv()

    act_in_steps(lambda: backend.write(changes, "v1", "v2"), places[:: -(-len(places) // most)], stop)
    backend.close()
    connection.send("written")


def _outcome(backend: StoreBackend, changes: Changes, previous: str | None, version: str) -> str:
    try:
        backend.write(changes, previous, version)
    except Exception as error:
        name = type(error).__name__
        return name if name in REFUSALS else f"{name}: {error}"
    return "written"


def _in_steps(connection: Connection, act: Callable[[], str], place: int) -> tuple[str, int]:
    """Act, and wait for an order at a step of that; return the outcome, and how many steps there were."""
    steps = 0

    def step(*event: object) -> None:
        nonlocal steps
        steps += 1
        if steps == place:
            sys.setprofile(None)
            connection.send("stopped")
            connection.recv()

    sys.setprofile(step)
    try:
        outcome = act()
    finally:
        sys.setprofile(None)
    return outcome, steps


def open_when_told(connection: Connection, opener: StoreBackendFactory, directory: Path) -> None:
    """Open and close a directory, wherever in that it is to stop, until the connection ends."""
    while True:
        try:
            place = connection.recv()
        except EOFError:
            return
        connection.send(_in_steps(connection, partial(_opened, opener, directory), place))


def _opened(opener: StoreBackendFactory, directory: Path) -> str:
    try:
        backend: StoreBackend = opener(directory, STORES)
        read_all(backend)
        backend.close()
    except Exception as error:
        name = type(error).__name__
        return name if name in REFUSALS else f"{name}: {error}"
    return "opened"


def look_when_told(
    connection: Connection, opener: StoreBackendFactory, directory: Path, stores: tuple[str, ...]
) -> None:
    """Look at stores as a reader in the way that is ordered, and send what is there, or the error, until the end."""
    reader: StoreBackend | None = None
    view: Any = None
    begun: dict[str, Any] = {}
    while True:
        try:
            order = connection.recv()
        except EOFError:
            break
        try:
            reader = reader or opener(directory, stores, read_only=True)
            found: object = None
            if order == "begin":
                begun = {store: reader.range(store) for store in stores}
                found = {store: [row for row in [next(rows, None)] if row] for store, rows in begun.items()}
            elif order == "go on":
                found = {store: list(rows) for store, rows in begun.items()}
            elif order == "make a view":
                view = reader.view(stores)
                found = view is not None
            elif order == "look at the view":
                found = view.version, {store: dict(view.range(store)) for store in stores}
            else:
                found = read_all(reader, stores)
        except StoreError:
            found = "StoreError"
        except Exception as error:
            found = f"{type(error).__name__}: {error}"
        connection.send(found)
    if view is not None:
        view.close()
    if reader is not None:
        reader.close()


def open_damaged(connection: Connection, opener: StoreBackendFactory, directory: Path) -> None:
    """Open a directory with damaged files, and send what is there, and whether it is trusted, or the error."""
    try:
        backend: StoreBackend = opener(directory, STORES)
        try:
            found: object = (*read_all(backend), backend.trusted())
        finally:
            backend.close()
    except StoreError as error:
        found = f"StoreError: {error}"
    except Exception as error:
        found = f"{type(error).__name__}: {error}"
    connection.send(found)


def open_after_crash(connection: Connection, opener: StoreBackendFactory, directory: Path, boot: Path) -> None:
    """As `open_damaged`, when the machine has been started again: it has another boot id."""

    def of_that_boot(opened: Callable[..., Any]) -> Any:
        return lambda file, *given, **named: opened(boot if str(file) == _BOOT_ID else file, *given, **named)

    io.open = builtins.open = of_that_boot(io.open)
    os.open = of_that_boot(os.open)
    open_damaged(connection, opener, directory)


def write_without_room(connection: Connection, opener: StoreBackendFactory, directory: Path) -> None:
    """Write some megabytes where files may not grow; send the outcome, the version and the changes."""
    random = Random(1)
    changes: Changes = {
        "first": [(b"large%03d" % row, random.randbytes(100_000)) for row in range(60)],
        "second": [(b"more", b"more")],
    }
    with closing(opener(directory, STORES)) as backend:
        try:
            with without_room(directory):
                backend.write(changes, "v1", "v2")
            outcome = "written"
        except StoreError as error:
            outcome = "StoreError" if not isinstance(error, StaleStoreError) else type(error).__name__
        except Exception as error:
            outcome = f"{type(error).__name__}: {error}"
        connection.send((outcome, backend.version(), changes))
    connection.send("closed")


def read_on(connection: Connection, opener: StoreBackendFactory, directory: Path) -> None:
    """Answer questions as a reader."""
    reader: StoreBackend | None = None
    while True:
        question = connection.recv()
        reader = reader or opener(directory, STORES, read_only=True)
        if question == "end":
            reader.close()
            connection.send("ended")
            return
        if question == "get":
            connection.send(reader.get("first", b"n"))
        elif question == "write":
            try:
                reader.write({}, reader.version(), "mine")
            except StoreError as error:
                connection.send(type(error).__name__)
            else:
                connection.send("written")
        else:
            connection.send((reader.get("first", b"n"), *read_all(reader)))


def read_early(connection: Connection, opener: StoreBackendFactory, directory: Path, stores: tuple[str, ...]) -> None:
    """Send what a reader finds, or the error that it raises; and once more when it is asked to."""
    reader: StoreBackend | None = None
    while True:
        try:
            reader = reader or opener(directory, stores, read_only=True)
            found: object = read_all(reader, stores)
            for store in stores:
                assert (reader.approximate_count(store) > 0) == bool(dict(reader.range(store))), "approximate_count"
                found_there = reader.get(store, b"not there")
                assert found_there is None, f"get of a key that is not there: expected None, found {found_there!r}"
        except StoreError as error:
            found = type(error).__name__
        except Exception as error:
            found = f"{type(error).__name__}: {error}"
        connection.send(found)
        try:
            connection.recv()
        except EOFError:
            break
    if reader is not None:
        reader.close()


def write_on(
    connection: Connection,
    opener: StoreBackendFactory,
    directory: Path,
    plan: Sequence[Changes],
    version: str | None,
    names: Sequence[str],
    closed: bool,
) -> None:
    """Write one change after the other, and send the name of each version; in another process."""
    backend = opener(directory, STORES)
    for changes, name in zip(plan, names, strict=True):
        backend.write(changes, version, name)
        version = name
        connection.send(name)
    if closed:
        backend.close()
    connection.send("done")
