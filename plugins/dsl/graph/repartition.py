"""RepartitionStep: sends records through a topic of the application's own, so that each key's records meet."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from penstock import KeyPart, Partitioner, Serde

from .names import Names
from .serdes import Serdes
from .step import Step
from .writer import RepartitionNames, Writer

SUFFIX = "-repartition"
_SOURCE, _SINK, _FILTER = "KSTREAM-SOURCE-", "KSTREAM-SINK-", "KSTREAM-FILTER-"
_NUMBERED = re.compile(r"KSTREAM.*-[0-9]{10}")


def repartition_names(names: Names, base: str, how: str) -> RepartitionNames:
    """Return the names for a topic that is named after `base`: a step, or what the user chose.

    Three numbers are used up in either case, as in Kafka Streams. `how` says how to choose a name.
    """
    topic = base if base.endswith(SUFFIX) else base + SUFFIX
    sink, kept, source = names.step(_SINK), names.step(_FILTER), names.step(_SOURCE)
    if _NUMBERED.fullmatch(base):
        names.generated[topic] = how
        return RepartitionNames(topic, sink, kept, source)
    return _after(topic)


def shared_names(names: Names, topic: str) -> RepartitionNames:
    """Return the names for a topic that takes the place of several: its nodes are named after it, if numbered or not.

    Kafka Streams compares the whole name of the topic with a pattern that is meant for what the topic is named after.
    """
    for prefix in (_SINK, _FILTER, _SOURCE):
        names.step(prefix)
    return _after(topic)


def _after(topic: str) -> RepartitionNames:
    return RepartitionNames(topic, f"{topic}-sink", f"{topic}-filter", f"{topic}-source")


class RepartitionStep(Step):
    """Writes a repartition topic. Its children get the records of the source that reads the topic.

    One that `may_merge` was not asked for by the user, and may be merged with others of the same stream. One for
    messages that are no records of a stream (updates of a table, or messages between both sides of a join) has
    `messages`, which returns their serde; it drops none of them.
    """

    def __init__(
        self,
        names: RepartitionNames,
        serdes: Serdes,
        *,
        messages: Callable[[Writer], Serde[Any]] | None = None,
        may_merge: bool = True,
        partitions: int | None = None,
        partitioner: Partitioner | None = None,
        partition_by: KeyPart | None = None,
    ) -> None:
        super().__init__(names.source)
        self.names = names
        self.serdes = serdes
        self.messages = messages
        self.may_merge = may_merge and messages is None
        self.partitions = partitions
        self.partitioner = partitioner
        self.partition_by = partition_by

    def write(self, writer: Writer) -> None:
        is_of_stream = self.messages is None
        writer.repartition(
            self.names,
            self.parent_names(),
            self.serdes if self.messages is None else Serdes(self.serdes.key, self.messages(writer)),
            partitions=self.partitions,
            partitioner=self.partitioner,
            partition_by=self.partition_by,
            drops_null_keys=is_of_stream,
            keeps_null_keys=is_of_stream and _leads_to_null_keys(self),
        )


def _leads_to_null_keys(step: Step) -> bool:
    return any(child.takes_null_keys or _leads_to_null_keys(child) for child in step.children)
