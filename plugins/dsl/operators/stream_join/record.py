"""How a join of two streams is recorded: its names, stores and steps."""

from __future__ import annotations

from datetime import timedelta

from penstock import TopologyError, duration_ms

from ...graph.names import checked
from ...graph.recorder import Recorder
from ...graph.serdes import Serdes
from ...graph.step import Flow, ProcessorStep
from ..joins import Joiner, JoinKind
from .inner import JoinWindow
from .steps import JoinSide, StreamJoinStep
from .stores import JoinStore, StreamJoinOptions, join_store, waiting_store
from .within import JoinWindows


def record_stream_join(
    recorder: Recorder,
    kind: JoinKind,
    left: Flow,
    right: Flow,
    joiner: Joiner,
    windows: JoinWindows,
    name: str | None,
    options: StreamJoinOptions,
) -> Flow:
    """Add the steps of a join of two streams that are partitioned by the same keys; return what comes out of it.

    The stores have their serdes.
    """
    names = recorder.names
    windowed = [names.suffixed(name, each, "KSTREAM-WINDOWED-") for each in ("-this-windowed", "-other-windowed")]
    this = "OUTERTHIS" if kind.keeps_right else "JOINTHIS"
    other = "OUTEROTHER" if kind.keeps_left else "JOINOTHER"
    this_number, other_number = names.step(f"KSTREAM-{this}-"), names.step(f"KSTREAM-{other}-")
    joins = [this_number, other_number]
    if name is not None:
        joins[0] = checked(f"{name}-outer-this-join" if kind.keeps_right else f"{name}-this-join")
        joins[1] = checked(f"{name}-outer-other-join" if kind.keeps_left else f"{name}-other-join")
    merge = names.suffixed(name, "-merge", "KSTREAM-MERGE-")

    stores = [
        join_store(kind.verb, option, f"{join}-store", flow.serdes, windows, options)
        for option, join, flow in zip(("this_store", "other_store"), joins, (left, right), strict=True)
    ]
    if stores[0].name == stores[1].name:
        raise TopologyError(
            f"{kind.verb}: this_store and other_store are both named {stores[0].name!r}; a join has two"
        )
    for each in stores:
        if each.given is not None:
            names.own_store(each.name, kind.verb)
    waiting = None
    if kind.keeps_left:
        shared = _waiting_name(kind, stores[0], name, this_number)
        waiting = waiting_store(shared, *stores)
    if name is None:
        generated = [each.name for each in stores if each.given is None]
        if waiting is not None and stores[0].given is None:
            generated.append(shared)
        names.generated |= dict.fromkeys(generated, f'{kind.verb}(..., name="NAME")')

    sides = [_side(recorder, *each) for each in zip((left, right), windowed, stores, joins, strict=True)]
    interval = duration_ms(options.get("emit_interval", timedelta(0)), f"{kind.verb}: emit_interval")
    keys = (left.serdes.key, right.serdes.key)
    step = StreamJoinStep(kind, merge, (sides[0], sides[1]), windows, joiner, keys, waiting, interval)
    recorder.add(step, left.step, right.step)
    recorder.copartition(left.sources | right.sources)
    return Flow(step, Serdes(left.serdes.key), left.sources | right.sources)


def _side(recorder: Recorder, flow: Flow, windowed: str, store: JoinStore, join: str) -> JoinSide:
    step = ProcessorStep(windowed, JoinWindow, {"store": store.name}, stores=lambda writer: (store.declared(writer),))
    recorder.add(step, flow.step)
    return JoinSide(step, store.name, join, store.retention_ms)


def _waiting_name(kind: JoinKind, this: JoinStore, name: str | None, number: str) -> str:
    base = name if this.given is None else this.name
    if base is None:
        return f"KSTREAM-OUTERSHARED-{number[-10:]}-store"
    return checked(f"{base}-outer-shared-join-store" if kind.keeps_right else f"{base}-left-shared-join-store")
