"""The verbs that look at one record at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

from penstock import TopologyError

from .branched import BranchedKStream
from .graph.functions import check_function, check_mapper, check_same_program
from .graph.materialized import WithKey, WithoutKey
from .graph.pass_through import PassThrough
from .graph.serdes import Serdes, different_keys
from .graph.step import Flow, ProcessorStep
from .missing_verbs import found
from .operators.stateless.filter import Filter
from .operators.stateless.map import FlatMap, FlatMapValues, Map, MapValues, SelectKey
from .operators.stateless.peek import Peek, Printer
from .stream_base import K, StreamBase, V

if TYPE_CHECKING:
    from .stream import KStream

K2 = TypeVar("K2")
V2 = TypeVar("V2")


class Stateless(StreamBase[K, V]):
    """Filters, mappers and their like.

    Every function gets the value; with `with_key=True` it gets the key first. `name` is the node's; without one it is
    numbered.
    """

    @overload
    def filter(self, predicate: Callable[[V], Any], **options: Unpack[WithoutKey]) -> KStream[K, V]: ...
    @overload
    def filter(self, predicate: Callable[[K, V], Any], **options: Unpack[WithKey]) -> KStream[K, V]: ...
    def filter(self, predicate: Callable[..., Any], *, with_key: bool = False, name: str | None = None) -> Any:
        """Keep the records for which `predicate` is true."""
        check_mapper("filter", predicate, with_key=with_key, what="predicate")
        options = {"predicate": predicate, "with_key": with_key}
        return self._processed("KSTREAM-FILTER-", name, Filter, options, self.flow.serdes)

    @overload
    def filter_not(self, predicate: Callable[[V], Any], **options: Unpack[WithoutKey]) -> KStream[K, V]: ...
    @overload
    def filter_not(self, predicate: Callable[[K, V], Any], **options: Unpack[WithKey]) -> KStream[K, V]: ...
    def filter_not(self, predicate: Callable[..., Any], *, with_key: bool = False, name: str | None = None) -> Any:
        """Keep the records for which `predicate` is not true."""
        check_mapper("filter_not", predicate, with_key=with_key, what="predicate")
        options = {"predicate": predicate, "with_key": with_key, "inverted": True}
        return self._processed("KSTREAM-FILTER-", name, Filter, options, self.flow.serdes)

    @overload
    def map(self, function: Callable[[V], tuple[K2, V2]], **options: Unpack[WithoutKey]) -> KStream[K2, V2]: ...
    @overload
    def map(self, function: Callable[[K, V], tuple[K2, V2]], **options: Unpack[WithKey]) -> KStream[K2, V2]: ...
    def map(self, function: Callable[..., Any], *, with_key: bool = False, name: str | None = None) -> Any:
        """Replace each record by the (key, value) pair that `function` returns."""
        check_mapper("map", function, with_key=with_key)
        options = {"function": function, "with_key": with_key}
        return self._processed("KSTREAM-MAP-", name, Map, options, Serdes(), changes_key=True, changes_value=True)

    @overload
    def map_values(self, function: Callable[[V], V2], **options: Unpack[WithoutKey]) -> KStream[K, V2]: ...
    @overload
    def map_values(self, function: Callable[[K, V], V2], **options: Unpack[WithKey]) -> KStream[K, V2]: ...
    def map_values(self, function: Callable[..., Any], *, with_key: bool = False, name: str | None = None) -> Any:
        """Replace each value by what `function` returns."""
        check_mapper("map_values", function, with_key=with_key)
        options = {"function": function, "with_key": with_key}
        serdes = Serdes(self.flow.serdes.key)
        return self._processed("KSTREAM-MAPVALUES-", name, MapValues, options, serdes, changes_value=True)

    @overload
    def flat_map(
        self, function: Callable[[V], Iterable[tuple[K2, V2]]], **options: Unpack[WithoutKey]
    ) -> KStream[K2, V2]: ...
    @overload
    def flat_map(
        self, function: Callable[[K, V], Iterable[tuple[K2, V2]]], **options: Unpack[WithKey]
    ) -> KStream[K2, V2]: ...
    def flat_map(self, function: Callable[..., Any], *, with_key: bool = False, name: str | None = None) -> Any:
        """Replace each record by any number of (key, value) pairs."""
        check_mapper("flat_map", function, with_key=with_key, may_generate=True)
        options = {"function": function, "with_key": with_key}
        return self._processed(
            "KSTREAM-FLATMAP-", name, FlatMap, options, Serdes(), changes_key=True, changes_value=True
        )

    @overload
    def flat_map_values(
        self, function: Callable[[V], Iterable[V2]], **options: Unpack[WithoutKey]
    ) -> KStream[K, V2]: ...
    @overload
    def flat_map_values(
        self, function: Callable[[K, V], Iterable[V2]], **options: Unpack[WithKey]
    ) -> KStream[K, V2]: ...
    def flat_map_values(self, function: Callable[..., Any], *, with_key: bool = False, name: str | None = None) -> Any:
        """Replace each record by one for each value that `function` returns; a text or bytes is refused as a list."""
        check_mapper("flat_map_values", function, with_key=with_key, may_generate=True)
        options = {"function": function, "with_key": with_key}
        serdes = Serdes(self.flow.serdes.key)
        return self._processed("KSTREAM-FLATMAPVALUES-", name, FlatMapValues, options, serdes, changes_value=True)

    @overload
    def select_key(self, function: Callable[[V], K2], **options: Unpack[WithoutKey]) -> KStream[K2, V]: ...
    @overload
    def select_key(self, function: Callable[[K, V], K2], **options: Unpack[WithKey]) -> KStream[K2, V]: ...
    def select_key(self, function: Callable[..., Any], *, with_key: bool = False, name: str | None = None) -> Any:
        """Replace each key by what `function` returns."""
        check_mapper("select_key", function, with_key=with_key)
        serdes = Serdes(value=self.flow.serdes.value)
        options = {"function": function, "with_key": with_key}
        return self._processed("KSTREAM-KEY-SELECT-", name, SelectKey, options, serdes, changes_key=True)

    # ------------------------------------------------------------------ side effects

    @overload
    def peek(self, function: Callable[[V], Any], **options: Unpack[WithoutKey]) -> KStream[K, V]: ...
    @overload
    def peek(self, function: Callable[[K, V], Any], **options: Unpack[WithKey]) -> KStream[K, V]: ...
    def peek(self, function: Callable[..., Any], *, with_key: bool = False, name: str | None = None) -> KStream[K, V]:
        """Call `function` for each record, which stays as it is. It is called again for what is processed again."""
        check_mapper("peek", function, with_key=with_key)
        options = {"function": function, "with_key": with_key}
        return self._processed("KSTREAM-PEEK-", name, Peek, options, self.flow.serdes)

    @overload
    def foreach(self, function: Callable[[V], Any], **options: Unpack[WithoutKey]) -> None: ...
    @overload
    def foreach(self, function: Callable[[K, V], Any], **options: Unpack[WithKey]) -> None: ...
    def foreach(self, function: Callable[..., Any], *, with_key: bool = False, name: str | None = None) -> None:
        """Call `function` for each record; nothing comes after it."""
        check_mapper("foreach", function, with_key=with_key)
        options = {"function": function, "with_key": with_key, "is_last": True}
        self._processed("KSTREAM-FOREACH-", name, Peek, options, self.flow.serdes)

    def print(
        self,
        *,
        label: str | None = None,
        text: Callable[[K, V], str] | None = None,
        file: str | Path | None = None,
        name: str | None = None,
    ) -> None:
        """Print each record, as `[label]: key, value` or as `text` returns it; on Spark, to the logs of its workers.

        With `file`, append the lines to this file, of the machine that runs the task; a path that is not absolute is in
        the directory in which the program is written. Semantics: Kafka Streams' Printed.
        """
        if text is not None:
            check_function("print", text, "key", "value")
        options: dict[str, Any] = {"label": label or self.flow.step.name, "function": text}
        if file is not None:
            if not isinstance(file, (str, Path)) or not str(file):
                raise TopologyError(f"print: file: expected the path of a file, found {file!r}")
            options["file"] = str(Path(file).absolute())
        self._processed("KSTREAM-PRINTER-", name, Printer, options, self.flow.serdes)

    # ------------------------------------------------------------------ several streams

    def merge(self, *others: KStream[K, V], name: str | None = None) -> KStream[K, V]:
        """Return the records of this stream and of others, in the order in which the task processes them."""
        merged: Any = self
        for number, other in enumerate(others):
            if not isinstance(other, StreamBase):
                hint = "; go on with its updates: table.to_stream()" if hasattr(other, "to_stream") else ""
                hint = "; write merge(one, other)" if isinstance(other, (list, tuple)) else hint
                raise TopologyError(f"merge: expected a KStream, found {found(other)}{hint}")
            check_same_program("merge", self, other)
            merged = merged._merged_with(other, name if number == len(others) - 1 else None)
        if not others:
            raise TopologyError("merge: expected at least one other stream")
        made: KStream[K, V] = merged
        return made

    def _merged_with(self, other: StreamBase[K, V], name: str | None) -> Any:
        step = ProcessorStep(self.recorder.names.step("KSTREAM-MERGE-", name), PassThrough)
        step.is_merge = True
        one, two = self.flow, other.flow
        self.recorder.add(step, one.step, two.step)
        serdes = one.serdes.common(two.serdes)
        # A key that two serdes write in different ways is in two partitions.
        needs = one.needs_repartition or two.needs_repartition
        needs = needs or different_keys("merge", one.serdes.key, two.serdes.key) is not None
        return self._stream_of(Flow(step, serdes, one.sources | two.sources, needs))

    def split(self, *, name: str | None = None) -> BranchedKStream[K, V]:
        """Begin to split into branches: `.branch(predicate, NAME)` for each, then `.default()` or `.no_default()`.

        A record goes to the first branch whose predicate accepts it. Nodes are named `name` with the branch's name.
        """
        return BranchedKStream(self, name)

    @overload
    def branch(
        self, branches: Mapping[str, Callable[[V], Any]], *, default: str | None = None, **options: Unpack[WithoutKey]
    ) -> dict[str, KStream[K, V]]: ...
    @overload
    def branch(
        self, branches: Mapping[str, Callable[[K, V], Any]], *, default: str | None = None, **options: Unpack[WithKey]
    ) -> dict[str, KStream[K, V]]: ...
    def branch(
        self,
        branches: Mapping[str, Callable[..., Any]],
        *,
        default: str | None = None,
        with_key: bool = False,
        name: str | None = None,
    ) -> dict[str, KStream[K, V]]:
        """Split into a stream for each predicate, and return the streams by name.

        A record goes to the first branch whose predicate accepts it, the others to the branch named `default`, if there
        is one.
        """
        if not isinstance(branches, Mapping):
            raise TopologyError(
                f"branch: expected predicates by the names of their branches, found {branches!r}; write "
                "branch({NAME: PREDICATE, ...})"
            )
        if not branches:
            raise TopologyError("branch: expected at least one predicate, by the name of its branch")
        split = self.split(name=name)
        for each, predicate in branches.items():
            split.branch(predicate, each, with_key=with_key)  # type: ignore[call-overload]
        return split.no_default() if default is None else split.default(default)
