"""A program that brings a serde and a kind of store of its own, as a script does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from penstock import Application, BytesStore, Processor, Record, Serde, StateStore, StoreContext, StoreSpec, Topology


class Words(Serde[list[str]]):
    """Words with a space between."""

    def serialize(self, value: list[str]) -> bytes:
        return " ".join(value).encode()

    def deserialize(self, data: bytes) -> list[str]:
        return data.decode().split()


class Bag(StateStore):
    """How often each word was added, as one byte; a zero for none yet."""

    def __init__(self, below: BytesStore) -> None:
        self.name = below.name
        self._below = below

    def add(self, word: str) -> int:
        """Count a word; return how often it was there before."""
        before = self._below.get(word.encode())
        count = 0 if before is None else before[0] + 1
        self._below.put(word.encode(), bytes((count,)))
        return count

    def __iter__(self) -> Iterator[tuple[str, int]]:
        return ((key.decode(), value[0]) for key, value in self._below.range())


@dataclass(frozen=True)
class BagSpec(StoreSpec):
    """Declares a bag; no plugin brings this kind."""

    def build(self, bytes_store: BytesStore, context: StoreContext) -> Bag:
        return Bag(bytes_store)


class Count(Processor):
    """Sends on how often each word of a record was there before."""

    def process(self, record: Record) -> None:
        bag = self.context.get_store("bag")
        self.context.forward(record.with_value([f"{word}={bag.add(word)}" for word in record.value]))


def application(changelog: str = "directory:changelog") -> Application:
    """The program."""
    topology = Topology().add_source("in", "in", key_serde="str", value_serde=Words())
    topology.add_processor("count", Count, "in", stores=[BagSpec("bag")])
    topology.add_sink("out", "out", "count", key_serde="str", value_serde=Words())
    return Application("own", topology, log="memory:x", changelog=changelog)
