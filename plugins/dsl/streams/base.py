"""StreamBase: what a KStream is made of; the verbs are mixins over it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from penstock.program.builder import Topology
from penstock.program.drawn import Drawn
from penstock.program.program import Program
from penstock.settings.settings import Settings

from ..graph.recorder import Recorder
from ..graph.step import ProcessorStep, Step
from ..serdes import Serdes

K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True)
class Flow:
    """Where a stream or table comes from: the step that makes its records, their serdes, and the sources above it.

    `needs_repartition`: a verb may have changed keys, so equal keys may be in different partitions.
    """

    step: Step
    serdes: Serdes
    sources: frozenset[str]
    needs_repartition: bool = False


class StreamBase(Drawn, Generic[K, V]):
    """A stream of records under construction. A notebook shows the program that it belongs to."""

    def __init__(self, recorder: Recorder, flow: Flow) -> None:
        self.recorder = recorder
        self.flow = flow

    def _program_to_draw(self) -> Program:
        return self.recorder.program_to_draw()

    def _tapped(self, settings: Settings) -> tuple[Topology, str]:
        """Return the topology of the program so far, and the node that forwards the records of this stream."""
        return self.recorder.tapped(settings, self.flow.step)

    if not TYPE_CHECKING:  # A type checker knows the verbs.

        def __getattr__(self, name: str) -> Any:
            """Say how to write a verb that only tables have."""
            recorder = self.__dict__.get("recorder")
            if recorder is not None and not name.startswith("_") and hasattr(recorder.kinds.table, name):
                raise AttributeError(
                    f"a stream has no {name}(), which is for tables; take the latest value of each key: "
                    f"stream.to_table().{name}(...)"
                )
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _stream(self, step: Step, serdes: Serdes, *, needs_repartition: bool | None = None) -> Any:
        """Return the stream of the records that `step` makes of this one; adds the step."""
        self.recorder.add(step, self.flow.step)
        needs = self.flow.needs_repartition if needs_repartition is None else needs_repartition
        return self.recorder.kinds.stream(self.recorder, Flow(step, serdes, self.flow.sources, needs))

    def _processed(
        self,
        prefix: str,
        name: str | None,
        supplier: Callable[..., Any],
        options: dict[str, Any],
        serdes: Serdes,
        *,
        changes_key: bool = False,
        changes_value: bool = False,
    ) -> Any:
        """Return the stream that one more processor makes of this one."""
        step = ProcessorStep(
            self.recorder.names.step(prefix, name),
            supplier,
            options,
            changes_key=changes_key,
            changes_value=changes_value,
        )
        return self._stream(step, serdes, needs_repartition=True if changes_key else None)
