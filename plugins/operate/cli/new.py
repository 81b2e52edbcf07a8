"""The verb `new`: writes a package with a plugin, its tests included."""

from __future__ import annotations

import keyword
import re
import sys
from pathlib import Path
from string import Template

import click

from penstock import hooks
from penstock.support.packages import DISTRIBUTION

from .command import verb, verbose_option
from .output import note

_NEEDED = (DISTRIBUTION, "setuptools", "pytest", "hypothesis")
"""What a new package is built and tested with."""


@verb(
    ("A package with a processor and its tests", "penstock new processor acme-sessions"),
    ("A package with a store backend", "penstock new backend acme-engine --directory engines/acme"),
    target=False,
)
@click.argument("kind", type=click.Choice(["processor", "backend"]))
@click.argument("name")
@click.option("--directory", type=click.Path(path_type=Path), help="Where it is written. [default: a folder NAME]")
@verbose_option
def new(kind: str, name: str, directory: Path | None) -> None:
    """Write a Python package NAME with a plugin: a processor, or a store backend.

    It has tests with hypothesis (the contract suites), a workflow that runs them, and the entry point by which penstock
    finds it. It works as it is; put your own code in place of its example.
    """
    from penstock import ConfigError
    from penstock.hooks.rules import prefixes_of

    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name) or name == "penstock":
        raise ConfigError(
            f"package name {name!r}: expected small letters and digits, in words with a dash between them, as in "
            "acme-sessions; others install it by that name"
        )
    if name in _NEEDED:
        raise ConfigError(
            f"package name {name!r}: the new package needs the one that has this name, and would be installed in its "
            "place: choose another one"
        )
    if keyword.iskeyword(name) or name.replace("-", "_") in sys.stdlib_module_names:
        raise ConfigError(
            f"package name {name!r}: Python has a keyword or a module of this name, so the package could not be "
            "imported: choose another one"
        )
    place = directory or Path(name)
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise ConfigError(f"{place} is there already: name an empty directory (--directory), or another package")
    component = f"{prefixes_of(name)[0]}.{'count' if kind == 'processor' else 'sqlite'}"
    written = files(kind, name, component)
    for path, text in written.items():
        file = place / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    note(f"{place}: a package with the {KINDS[kind]} {component!r}, in {len(written)} files")
    note(f"next: cd {place}; pip install --editable '.[test]'; penstock plugins --check; pytest")


_PYPROJECT = """\
[build-system]
requires = ["setuptools >= 70.1"]
build-backend = "setuptools.build_meta"

[project]
name = "$NAME"
version = "0.1.0"
description = "A $KIND for penstock"
requires-python = ">=3.11"
dependencies = ["$DISTRIBUTION"]

[project.optional-dependencies]
test = ["$DISTRIBUTION[testing]"]

[project.entry-points.penstock]
$MODULE = "$MODULE"

[tool.setuptools.packages.find]
where = ["src"]
"""

_WORKFLOW = """\
name: test
on: [push, pull_request]
jobs:
  test:
    runs-on: ubuntu-latest
    steps:
      - uses: actions/checkout@v4
      - uses: actions/setup-python@v5
        with:
          python-version: "3.11"
      - uses: actions/setup-java@v4
        with:
          distribution: temurin
          java-version: "17"
      - run: pip install --editable '.[test]'
      - run: penstock plugins --check
      - run: pytest
"""

_README = """\
# $NAME

A $KIND for penstock, by the name `$COMPONENT`.

```console
$$ pip install --editable '.[test]'
$$ penstock plugins --check
$$ pytest
```
"""

_HOOKS = '''\
"""What $NAME brings to penstock."""

from penstock import hookimpl


@hookimpl
def $HOOK() -> dict[str, str]:
    """Name our ${KIND}s."""
    return {"$COMPONENT": "$MODULE.$TARGET"}
'''

_PROCESSOR = '''\
"""Count: forwards how many records of a key there have been."""

from __future__ import annotations

from penstock import Processor, ProcessorContext, Record, StoreBuilder, key_value_store


class Count(Processor):
    """Keeps a number for each key. It brings its store, so a topology need not declare it."""

    def __init__(self, store: str = "counts") -> None:
        self._store = store

    @classmethod
    def stores(cls, store: str = "counts") -> list[StoreBuilder]:
        """Return the stores of a node with these options."""
        return [key_value_store(store, value_serde="int")]

    def init(self, context: ProcessorContext) -> None:
        """Get ready for a task's records."""
        super().init(context)
        self._counts = context.get_store(self._store)

    def process(self, record: Record) -> None:
        """Count one record."""
        count = (self._counts.get(record.key) or 0) + 1
        self._counts.put(record.key, count)
        self.context.forward(record.with_value(count))
'''

_PIPELINE = '''\
"""An application with the processor, to try it: `penstock run pipeline:application`."""

from penstock import Application, Topology

topology = (
    Topology()
    .add_source("in", "words")
    .add_processor("count", "$COMPONENT", "in")
    .add_sink("out", "counts", "count", value_serde="int")
)
application = Application("$NAME", topology)
'''

_PROCESSOR_TEST = '''\
"""The processor against plain Python, and on Spark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from hypothesis import strategies as st

from penstock import Application, Record, Topology
from penstock.testing.contracts import ProcessorContract
from penstock.testing.strategies import streams


def counting() -> Topology:
    """Return words -> count -> counts."""
    topology = Topology().add_source("in", "words").add_processor("count", "$COMPONENT", "in")
    return topology.add_sink("out", "counts", "count", value_serde="int")


def counted(records: list[Record]) -> Iterator[tuple[str, int]]:
    """Return the expected answer of the processor."""
    seen: Counter[str] = Counter()
    for record in records:
        seen[record.key] += 1
        yield record.key, seen[record.key]


class TestCount(ProcessorContract):
    program = staticmethod(counting)
    reference = staticmethod(counted)
    records = streams(values=st.none(), late="10s", null_keys=False)


def test_it_runs_on_spark_through_a_kill(
    penstock_application: Callable[..., Application], penstock_run_with_kills: Callable[..., Any]
) -> None:
    words = [(word, None, at) for at, word in enumerate(["to", "be", "to"])]
    done = penstock_run_with_kills(penstock_application(counting()), {"words": words}, kills=1, master="local[2]")
    assert sorted((each.key, each.value) for each in done.answers["counts"]) == [("be", 1), ("to", 1), ("to", 2)]
    assert done.summary.workers_lost == 1
'''

_BACKEND = '''\
"""Backend: keeps the stores of a task in a file of SQLite. Put your engine in its place."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from penstock import StaleStoreError, StoreBackend, StoreError, StoreLockedError
from penstock.store import Changes


class Backend(StoreBackend):
    """One file for each task, in it one table for all stores."""

    def __init__(self, directory: Path, stores: Sequence[str], *, read_only: bool = False) -> None:
        self._file = directory / "state.sqlite"
        self._stores = frozenset(stores)
        mode = "ro" if read_only else "rwc"
        try:
            # It is opened and restored in another thread than it is used in.
            self._db = sqlite3.connect(
                f"{self._file.absolute().as_uri()}?mode={mode}", uri=True, isolation_level=None, check_same_thread=False
            )
        except sqlite3.Error as error:
            raise StoreError(f"{self._file} cannot be opened: {error}") from error
        self._inode = self._file.stat().st_ino
        if not read_only:
            self._run("PRAGMA journal_mode = WAL")
            # A power failure may lose the last commits, which leaves an older version: the changelog has the rest.
            self._run("PRAGMA synchronous = NORMAL")
            self._run("CREATE TABLE IF NOT EXISTS version (name TEXT)")
            self._run(
                "CREATE TABLE IF NOT EXISTS entries "
                "(store TEXT, key BLOB, value BLOB NOT NULL, PRIMARY KEY (store, key)) WITHOUT ROWID"
            )

    def version(self) -> str | None:
        """Return the version that the last write recorded."""
        rows = self._run("SELECT name FROM version")
        return rows[0][0] if rows else None

    def get(self, store: str, key: bytes) -> bytes | None:
        """Return a value, or None."""
        rows = self._run("SELECT value FROM entries WHERE store = ? AND key = ?", (self._known(store), key))
        return rows[0][0] if rows else None

    def range(
        self, store: str, start: bytes | None = None, end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield entries in the order of their keys, page by page: the engine may write between two of them."""
        beyond, order = ("<", "DESC") if reverse else (">", "ASC")
        bounds: dict[str, Any] = {"store = ?": self._known(store), "key >= ?": start, "key < ?": end}
        while True:
            given = {condition: value for condition, value in bounds.items() if value is not None}
            page = self._run(
                f"SELECT key, value FROM entries WHERE {' AND '.join(given)} ORDER BY key {order} LIMIT 256",
                tuple(given.values()),
            )
            yield from page
            if len(page) < 256:
                return
            bounds[f"key {beyond} ?"] = page[-1][0]

    def approximate_count(self, store: str) -> int:
        """Return how many keys there are."""
        return int(self._run("SELECT count(*) FROM entries WHERE store = ?", (self._known(store),))[0][0])

    def write(self, changes: Changes, previous: str | None, version: str) -> None:
        """Apply all changes and record the version, in one atomic step, if the store is at `previous`."""
        self._run("BEGIN IMMEDIATE")
        try:
            if not self._is_here() or self.version() != previous:
                raise StaleStoreError(f"{self._file} is not at version {previous} any more: re-open the task")
            for store, rows in changes.items():
                self._known(store)
                for key, value in rows:
                    if value is None:
                        self._run("DELETE FROM entries WHERE store = ? AND key = ?", (store, key))
                    else:
                        self._run("INSERT OR REPLACE INTO entries VALUES (?, ?, ?)", (store, key, value))
            self._run("DELETE FROM version")
            self._run("INSERT INTO version VALUES (?)", (version,))
            self._run("COMMIT")
        except BaseException:
            if self._db.in_transaction:  # after some errors SQLite has ended it
                self._run("ROLLBACK")
            raise

    def close(self) -> None:
        """Release everything."""
        self._db.close()

    def destroy(self) -> None:
        """Close, and delete the files, unless another process has rebuilt them."""
        self.close()
        if self._file.exists() and not self._is_here():
            return
        for file in (self._file, *self._file.parent.glob("state.sqlite-*")):
            file.unlink(missing_ok=True)

    def _is_here(self) -> bool:
        """Return whether the open file is still in the directory: SQLite writes on in one that was deleted."""
        return self._file.exists() and self._file.stat().st_ino == self._inode

    def _known(self, store: str) -> str:
        if store not in self._stores:
            raise StoreError(f"{self._file} was not opened with a store {store!r}")
        return store

    def _run(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        try:
            return self._db.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            # SQLite has waited 5 s, its default, for another process that writes.
            is_locked = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY
            raise (StoreLockedError if is_locked else StoreError)(f"{self._file}: {error}") from error
'''

_BACKEND_TEST = '''\
"""The backend keeps penstock's contract, and every kind of store works over it."""

from __future__ import annotations

from $MODULE.backend import Backend
from penstock.testing.contracts import StoreBackendContract, StoreKindsContract


class TestBackend(StoreBackendContract):
    open = staticmethod(Backend)


class TestKinds(StoreKindsContract):
    open = staticmethod(Backend)
'''

_OF_KIND = {
    "processor": {
        "src/$MODULE/processor.py": _PROCESSOR,
        "pipeline.py": _PIPELINE,
        "tests/test_processor.py": _PROCESSOR_TEST,
    },
    "backend": {"src/$MODULE/backend.py": _BACKEND, "tests/test_backend.py": _BACKEND_TEST},
}
_TARGETS = {"processor": "processor:Count", "backend": "backend:Backend"}
_OF_ALL = {
    "pyproject.toml": _PYPROJECT,
    "README.md": _README,
    ".github/workflows/test.yml": _WORKFLOW,
    "src/$MODULE/__init__.py": _HOOKS,
    "src/$MODULE/py.typed": "",
}
KINDS = {"processor": "processor", "backend": "store backend"}


def files(kind: str, name: str, component: str) -> dict[str, str]:
    """Return the files of a package by path: the package brings a thing of a kind, by the name `component`."""
    values = {
        "NAME": name,
        "MODULE": name.replace("-", "_"),
        "COMPONENT": component,
        "KIND": KINDS[kind],
        "DISTRIBUTION": DISTRIBUTION,
    }
    values |= {"HOOK": hooks.KINDS[KINDS[kind]], "TARGET": _TARGETS[kind]}
    given = {**_OF_ALL, **_OF_KIND[kind]}
    return {Template(path).substitute(values): Template(text).substitute(values) for path, text in given.items()}
