"""The verbs that join a stream with another stream."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack, overload

from penstock.errors import TopologyError

from ..functions import check_function
from ..graph.stream_joins import Joiner
from ..join_stores import StreamJoinOptions
from ..join_windows import JoinWindows
from ..serdes import KnownSerde, Serdes, check_same_keys
from .base import Flow, K, V
from .output import Output
from .stream_join import INNER, LEFT, OUTER, JoinKind, record_stream_join

if TYPE_CHECKING:
    from .kstream import KStream

V2 = TypeVar("V2")
R = TypeVar("R")


class Joining(Output[K, V]):
    """Joins. A joiner is a function of (left, right); with `with_key=True` it gets the key first."""

    _repartitioned_for_join: KStream[K, V] | None = None

    @overload
    def join(
        self,
        other: KStream[K, V2],
        joiner: Callable[[V, V2], R],
        window: JoinWindows,
        *,
        with_key: Literal[False] = False,
        name: str | None = None,
        **options: Unpack[StreamJoinOptions],
    ) -> KStream[K, R]: ...
    @overload
    def join(
        self,
        other: KStream[K, V2],
        joiner: Callable[[K, V, V2], R],
        window: JoinWindows,
        *,
        with_key: Literal[True],
        name: str | None = None,
        **options: Unpack[StreamJoinOptions],
    ) -> KStream[K, R]: ...
    def join(self, other: Any, joiner: Callable[..., Any], window: Any = None, **options: Any) -> Any:
        """Join with the records of the same key of another stream that are near in time.

        The result's timestamp is the later one of the two records, its headers those of the record that came last.
        Records without a key or a value are dropped, and those that are later than the window and its grace.

        >>> from penstock.plugins.dsl import StreamsBuilder, within
        >>> from penstock.plugins.testing import TopologyTestDriver
        >>> builder = StreamsBuilder()
        >>> clicks, views = builder.stream("clicks"), builder.stream("views")
        >>> both = clicks.join(views, lambda click, view: f"{view}, {click}", within("10s", grace="0s"), name="both")
        >>> both.to("both")
        >>> with TopologyTestDriver(builder) as driver:
        ...     driver.pipe("views", "anna", "shoes", 1_000)
        ...     driver.pipe("clicks", "anna", "buy", 9_000)
        ...     driver.pipe("clicks", "anna", "help", 12_000)
        ...     [(record.value, record.timestamp) for record in driver.read_all("both")]
        [('shoes, buy', 9000)]

        `name` names the nodes, the stores (`NAME-this-join-store`, `NAME-other-join-store`) and the repartition topics
        (`NAME-left-repartition`, `NAME-right-repartition`). Semantics: Kafka Streams' KStream-KStream join.
        """
        return self._joined(INNER, other, joiner, window, options)

    @overload
    def left_join(
        self,
        other: KStream[K, V2],
        joiner: Callable[[V, V2 | None], R],
        window: JoinWindows,
        *,
        with_key: Literal[False] = False,
        name: str | None = None,
        **options: Unpack[StreamJoinOptions],
    ) -> KStream[K, R]: ...
    @overload
    def left_join(
        self,
        other: KStream[K, V2],
        joiner: Callable[[K, V, V2 | None], R],
        window: JoinWindows,
        *,
        with_key: Literal[True],
        name: str | None = None,
        **options: Unpack[StreamJoinOptions],
    ) -> KStream[K, R]: ...
    def left_join(self, other: Any, joiner: Callable[..., Any], window: Any = None, **options: Any) -> Any:
        """Join as `join` does, and keep left records that find no match: the joiner then gets None as the right value.

        Such a result comes once the join's stream time has passed the end of the window and its grace. It comes at once
        for a left record without a key (KIP-962), and for one that is late: whose window has passed when it comes, and
        has no match yet. Semantics: Kafka Streams' left join of streams.
        """
        return self._joined(LEFT, other, joiner, window, options)

    @overload
    def outer_join(
        self,
        other: KStream[K, V2],
        joiner: Callable[[V | None, V2 | None], R],
        window: JoinWindows,
        *,
        with_key: Literal[False] = False,
        name: str | None = None,
        **options: Unpack[StreamJoinOptions],
    ) -> KStream[K, R]: ...
    @overload
    def outer_join(
        self,
        other: KStream[K, V2],
        joiner: Callable[[K, V | None, V2 | None], R],
        window: JoinWindows,
        *,
        with_key: Literal[True],
        name: str | None = None,
        **options: Unpack[StreamJoinOptions],
    ) -> KStream[K, R]: ...
    def outer_join(self, other: Any, joiner: Callable[..., Any], window: Any = None, **options: Any) -> Any:
        """Join as `left_join` does, and keep right records that find no match, too: the left value is then None."""
        return self._joined(OUTER, other, joiner, window, options)

    # ------------------------------------------------------------------ parts

    def _joined(self, kind: JoinKind, other: Any, joiner: Callable[..., Any], window: Any, options: Any) -> Any:
        verb = kind.verb
        if not isinstance(other, Joining):
            raise TopologyError(f"{verb}: expected a KStream, found {other!r}")
        with_key, name = options.pop("with_key", False), options.pop("name", None)
        check_function(verb, joiner, *(("key",) if with_key else ()), "left", "right", what="joiner")
        if not isinstance(window, JoinWindows):
            raise TopologyError(
                f"{verb}: a join of two streams needs a window, found {window!r}; write "
                f'{verb}(other, joiner, within("10m", grace="1m"))'
            )
        known = StreamJoinOptions.__annotations__
        unknown = sorted(set(options) - set(known))
        if unknown:
            raise TopologyError(f"{verb}: there is no option {', '.join(unknown)}; expected {', '.join(known)}")
        flows = self._flows(kind, other, name, options)
        return self.recorder.kinds.stream(
            self.recorder,
            record_stream_join(self.recorder, kind, *flows, Joiner(joiner, with_key), window, name, options),
        )

    def _flows(
        self, kind: JoinKind, other: Joining[Any, Any], name: str | None, options: StreamJoinOptions
    ) -> tuple[Flow, Flow]:
        """Return both sides behind their repartition topics, where they need one, with the serdes of their stores."""
        key = options.get("key_serde")
        left = self._serdes(key, options.get("value_serde"))
        right = other._serdes(key, options.get("other_value_serde"))
        check_same_keys(kind.verb, left.key, right.key)
        left, right = Serdes(_first(left.key, right.key), left.value), Serdes(_first(right.key, left.key), right.value)
        sides: list[Flow] = []
        for stream, serdes, suffix in ((self, left, "-left"), (other, right, "-right")):
            behind = stream
            if stream.flow.needs_repartition:
                base = stream.flow.step.name if name is None else name + suffix
                behind = stream._repartitioned_once(base, serdes, f'{kind.verb}(..., name="NAME")')
            known = behind.flow.serdes
            kept = Serdes(_first(serdes.key, known.key), _first(serdes.value, known.value))
            sides.append(Flow(behind.flow.step, kept, behind.flow.sources))
        return sides[0], sides[1]

    def _repartitioned_once(self, base: str, serdes: Serdes, how: str) -> Any:
        """Return this stream behind a repartition topic; several joins without a name share one, as in Kafka Streams.

        They use up the numbers of its names nevertheless.
        """
        made = self._repartitioned_for_join
        if made is not None and base == self.flow.step.name:
            for prefix in ("KSTREAM-SINK-", "KSTREAM-FILTER-", "KSTREAM-SOURCE-"):
                self.recorder.names.step(prefix)
            return made
        self._repartitioned_for_join = made = self._repartitioned(base, serdes, how=how)
        return made


def _first(one: KnownSerde, other: KnownSerde) -> KnownSerde:
    return other if one is None else one
