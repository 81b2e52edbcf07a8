"""A typed store over all layers that a property test commits, fails and opens again at will."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, ClassVar

from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from penstock.store import Change, StateStore, StoreBackend, StoreBackendFactory
from penstock.store.specs import StoreSpec
from penstock.stores.commit_buffer import CommitBuffer
from penstock.stores.lmdb import LmdbBackend
from penstock.stores.memory import MemoryBackend

from .context import TestContext

BACKENDS: dict[str, StoreBackendFactory] = {"memory": MemoryBackend, "lmdb": LmdbBackend}


class Stored(RuleBasedStateMachine):
    """The base of machines that compare a store, `store`, with a model of what is seen.

    A subclass declares `spec` and rules of its own. `take_over` is called when everything since the last commit is
    lost, and `commit_model` at each commit.
    """

    spec: ClassVar[StoreSpec]
    backend_name: ClassVar[str]

    @initialize()
    def start(self) -> None:
        self.temporary = tempfile.TemporaryDirectory()
        self.deltas: list[list[Change]] = []
        self.open()

    def teardown(self) -> None:
        if hasattr(self, "backend"):
            self.backend.destroy()
            self.temporary.cleanup()

    def open(self) -> None:
        self.backend: StoreBackend = BACKENDS[self.backend_name](Path(self.temporary.name), ["s"])
        self.buffer = CommitBuffer(self.backend, "s")
        self.store: Any = self.spec.build(self.buffer, TestContext())
        assert isinstance(self.store, StateStore)

    def take_over(self) -> None:
        raise NotImplementedError

    def commit_model(self) -> None:
        raise NotImplementedError

    def write(self, changes: list[Change]) -> None:
        version = self.backend.version()
        self.backend.write({"s": changes}, version, (version or "") + "x")

    @rule()
    def commit(self) -> None:
        self.store.flush()
        self.deltas.append(self.buffer.changes())
        self.write(self.deltas[-1])
        self.buffer.clear()
        self.commit_model()

    @rule()
    def fail(self) -> None:
        self.store.discard()
        self.buffer.clear()
        self.take_over()

    @rule()
    def fail_after_flush(self) -> None:
        self.store.flush()
        self.fail()

    @rule()
    def commit_and_fail(self) -> None:
        self.commit()
        self.fail()

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.backend.close()
        self.open()
        self.take_over()

    @rule()
    def restore(self) -> None:
        """Restore from the changelog alone."""
        rows: dict[bytes, bytes | None] = dict.fromkeys(key for key, _ in self.backend.range("s"))
        for delta in self.deltas:
            rows.update(delta)
        self.write(sorted(rows.items()))
        self.fail()


def check(machine: type[Stored], spec: StoreSpec, backend: str, max_examples: int = 50) -> None:
    """Run a machine with a store on a backend."""
    chosen = type(machine.__name__, (machine,), {"spec": spec, "backend_name": backend})
    run_state_machine_as_test(
        chosen,
        settings=settings(
            max_examples=max_examples if backend == "memory" else max_examples // 3,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
