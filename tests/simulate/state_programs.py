"""Programs whose state is backed up in simulated histories: tasks that are connected, and tasks that are not."""

from __future__ import annotations

from penstock import Record, Topology, key_value_store

from .programs import Counts, Keeps, contract, counts, many_records
from .silent import SILENCE
from .visiting import VISITS


class Passes(Keeps):
    """Counts the records of each key, and passes each on under one of three others."""

    def process(self, record: Record) -> None:
        self.store.put(record.key, (self.store.get(record.key) or 0) + 1)
        self.context.forward(record.with_key(f"{record.value % 3}"))


class Receives(Counts):
    """Counts what it gets in a store of its own; the order of what several tasks send is left to chance."""

    def init(self, context: object) -> None:
        super(Keeps, self).init(context)  # type: ignore[arg-type]
        self.store = self.context.get_store("received")

    def process(self, record: Record) -> None:
        super().process(Record(record.key, record.value, 0))


def passed_on() -> Topology:
    return (
        Topology()
        .add_source("in", "in")
        .add_processor("passes", Passes, "in", stores=[key_value_store("kept")])
        .add_repartition("again", "passes")
        .add_processor("receives", Receives, "again", stores=[key_value_store("received")])
        .add_sink("out", "out", "receives")
    )


BACKUPS = {
    f"passed on, with backups, changelog {place}": contract(
        "PassedOn", program=passed_on, records=many_records, options={"backups": True, "changelog": place}
    )
    for place in ("topic:", "directory:", "directory:s3://bucket/of mine")
} | {
    "counts, with backups, changelog topic:": contract(
        "CountsBackedUp", program=counts, records=many_records, options={"backups": True}
    )
}
RESHARDS = {
    f"passed on, resharded, changelog {place}": contract(
        "PassedOnResharded", program=passed_on, records=many_records, options={"reshard": (3, 5), "changelog": place}
    )
    for place in ("topic:", "directory:")
}
CONTRACTS = {**BACKUPS, **RESHARDS, **VISITS, **SILENCE}
