"""KGroupedStream: a stream whose records are grouped by key, to be aggregated."""

from __future__ import annotations

from typing import Generic

from ..graph.recorder import Recorder
from .base import Flow, K, V


class KGroupedStream(Generic[K, V]):
    """Records grouped by key. Semantics: Kafka Streams' KGroupedStream."""

    def __init__(self, recorder: Recorder, flow: Flow, name: str | None) -> None:
        self.recorder = recorder
        self.flow = flow
        self.name = name
