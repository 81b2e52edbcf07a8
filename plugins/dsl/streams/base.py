"""StreamBase: what a KStream is made of; the verbs are mixins over it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

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


class StreamBase(Generic[K, V]):
    """A stream of records under construction."""

    def __init__(self, recorder: Recorder, flow: Flow) -> None:
        self.recorder = recorder
        self.flow = flow

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
