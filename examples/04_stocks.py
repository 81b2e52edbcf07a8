"""Stock prices by quarter. Teaches punctuators: functions called as time passes, here the time of the records.

Monthly prices of five stocks from 2000 to 2010 (from the PyPI package vega_datasets) come in. At the end of each
quarter the change of every stock since the last report goes out. Stream time is the highest timestamp seen, so a
recorded decade passes in a second, and a second run gives the same reports.

$ penstock topics create prices reports --partitions 2
$ python examples/04_stocks.py | penstock produce prices --json-lines --value-serde json
$ penstock run examples/04_stocks.py:application
$ penstock consume reports --value-serde json
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from penstock import STREAM_TIME, Application, Processor, ProcessorContext, Record, Topology, key_value_store

QUARTER = "91d"
START = datetime(2000, 1, 1, tzinfo=UTC)


class Changes(Processor):
    """Keeps each stock's price at the last report and its price now, and reports when a quarter is over."""

    def init(self, context: ProcessorContext) -> None:
        """Schedule the reports. With `start` they are on the same days, whatever the first record's timestamp is."""
        super().init(context)
        self.prices = context.get_store("prices")
        context.schedule(QUARTER, self.report, STREAM_TIME, start=milliseconds(START))

    def process(self, record: Record) -> None:
        """Take one price; nothing is forwarded before a quarter is over."""
        price = record.value["price"]
        known = self.prices.get(record.key)
        self.prices.put(record.key, {"then": known["then"] if known else price, "now": price})

    def report(self, time: int) -> None:
        """Forward every stock's change. A punctuator has no current record, so it gets the time."""
        for symbol, price in self.prices.all():
            change = price["now"] / price["then"] - 1
            self.context.forward(Record(symbol, {"price": price["now"], "change": round(change, 4)}, time))
            self.prices.put(symbol, {"then": price["now"], "now": price["now"]})


topology = (
    Topology()
    .add_source("prices", "prices")
    .add_processor("changes", Changes, "prices", stores=[key_value_store("prices", key_serde="str")])
    .add_sink("reports", "reports", "changes")
)

application = Application("stocks", topology, value_serde="json")


def prices() -> Iterator[tuple[str, dict[str, Any], int]]:
    """Yield (symbol, value, timestamp) of every price, oldest first. Needs `pip install vega_datasets`."""
    from vega_datasets import local_data

    with open(local_data.stocks.filepath, encoding="utf-8") as file:
        rows = [(datetime.strptime(f"{row['date']} +0000", "%b %d %Y %z"), row) for row in csv.DictReader(file)]
    for date, row in sorted(rows, key=lambda each: each[0]):
        yield row["symbol"], {"price": float(row["price"])}, milliseconds(date)


def milliseconds(time: datetime) -> int:
    """Return a time as a record's timestamp."""
    return round(time.timestamp() * 1000)


if __name__ == "__main__":
    for symbol, value, timestamp in prices():
        print(json.dumps({"key": symbol, "value": value, "timestamp": timestamp}))
