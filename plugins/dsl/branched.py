"""BranchedKStream: a stream that is being split into branches."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, Literal, overload

from penstock import TopologyError

from .graph.functions import check_function, check_mapper, keyed
from .graph.names import checked
from .graph.pass_through import PassThrough
from .graph.step import Flow, ProcessorStep
from .missing_verbs import Verbs
from .operators.stateless.filter import Branch
from .stream_base import K, StreamBase, V

if TYPE_CHECKING:
    from .stream import KStream

Then = Callable[[Any], Any]
"""Gets the stream of a branch; what it returns takes the stream's place among the branches (None: it has none)."""


class BranchedKStream(Verbs, Generic[K, V]):
    """A stream that is being split. Semantics: Kafka Streams' BranchedKStream (KIP-418)."""

    kind = "split stream"

    def __init__(self, source: StreamBase[K, V], name: str | None) -> None:
        self._source = source
        self._streams: dict[str, KStream[K, V]] = {}
        self._predicates: list[Callable[[Any, Any], Any]] = []
        self._children: list[str] = []
        step = source.recorder.names.step("KSTREAM-BRANCH-", name)
        self._step = ProcessorStep(
            step, Branch, {"predicates": self._predicates, "children": self._children, "default": None}
        )
        source.recorder.add(self._step, source.flow.step)

    @overload
    def branch(
        self,
        predicate: Callable[[V], Any],
        name: str | None = None,
        *,
        with_key: Literal[False] = False,
        then: Then | None = None,
    ) -> BranchedKStream[K, V]: ...
    @overload
    def branch(
        self,
        predicate: Callable[[K, V], Any],
        name: str | None = None,
        *,
        with_key: Literal[True],
        then: Then | None = None,
    ) -> BranchedKStream[K, V]: ...
    def branch(
        self,
        predicate: Callable[..., Any],
        name: str | None = None,
        *,
        with_key: bool = False,
        then: Then | None = None,
    ) -> BranchedKStream[K, V]:
        """Add a branch for records that `predicate` accepts. Without a name it is called "1", "2" and so on.

        `then` is called with its stream.
        """
        check_mapper("branch", predicate, with_key=with_key, what="predicate")
        self._predicates.append(keyed(predicate, with_key=with_key))
        self._children.append(self._add(str(len(self._predicates)) if name is None else checked(name), then))
        return self

    def default(self, name: str | None = None, *, then: Then | None = None) -> dict[str, KStream[K, V]]:
        """Add a branch for all other records, named "0" without a name. Return the streams of the branches by name."""
        self._step.options["default"] = self._add("0" if name is None else checked(name), then)
        return self._streams

    def no_default(self) -> dict[str, KStream[K, V]]:
        """Let all other records go. Return the streams of the branches by name."""
        return self._streams

    def _add(self, name: str, then: Then | None) -> str:
        recorder, flow = self._source.recorder, self._source.flow
        child = self._step.name + name
        if child in self._children:
            raise TopologyError(f"branch {name!r} is there already; choose another name")
        recorder.names.step(child)
        step = ProcessorStep(child, PassThrough)
        recorder.add(step, self._step)
        made = recorder.kinds.stream(recorder, Flow(step, flow.serdes, flow.sources, flow.needs_repartition))
        if then is not None:
            check_function("branch", then, "stream", what="then")
            made = then(made)
        if made is not None:
            self._streams[name] = made
        return child
