r"""A point of sale. Teaches JSON, a filter, a value transformer with state, and branches to several topics.

Invoices come in; those without lines are dropped. The others go to three topics: home deliveries to `shipments`;
purchases of loyal customers, with their points so far, to `loyalty`; every line, without the customer's name, to
`archive`.

$ penstock topics create invoices shipments loyalty archive --partitions 2
$ echo '{"number":"I-1","customer":"anna","loyal":true,"delivery":"home","lines":[{"quantity":2,"cents":350}]}' \
    | penstock produce invoices --value-serde json
$ penstock run examples/03_point_of_sale.py:application
$ penstock consume loyalty --value-serde json
"""

from __future__ import annotations

from typing import Any

from penstock import (
    Application,
    Processor,
    Record,
    Topology,
    ValueTransformer,
    ValueTransformerContext,
    key_value_store,
)

CENTS_A_POINT = 100


class Sold(Processor):
    """A filter: forwards invoices that have lines."""

    def process(self, record: Record) -> None:
        """Look at one invoice."""
        if record.value["lines"]:
            self.context.forward(record)


class Branches(Processor):
    """Forwards each invoice to the children that need it, by name."""

    def process(self, record: Record) -> None:
        """Route one invoice."""
        invoice = record.value
        if invoice["delivery"] == "home":
            self.context.forward(record, to="shipments")
        if invoice["loyal"]:
            # Points belong to a customer, so the customer becomes the key before the repartition topic.
            self.context.forward(record.with_key(invoice["customer"]), to="by-customer-filter")
        self.context.forward(record, to="lines")


class Rewards(ValueTransformer):
    """Turns an invoice into the points that it earned, and the customer's total.

    A value transformer cannot change the key, so records stay with their customer.
    """

    def init(self, context: ValueTransformerContext) -> None:
        """Look up the store."""
        super().init(context)
        self.points = context.get_store("points")

    def transform(self, key: str, value: dict[str, Any]) -> dict[str, Any]:
        """Add up one invoice."""
        earned = total_cents(value) // CENTS_A_POINT
        points = (self.points.get(key) or 0) + earned
        self.points.put(key, points)
        return {"invoice": value["number"], "earned": earned, "points": points}


class Lines(Processor):
    """Forwards one record for each line of an invoice, without the customer's name."""

    def process(self, record: Record) -> None:
        """Split one invoice."""
        number = record.value["number"]
        for position, line in enumerate(record.value["lines"], 1):
            self.context.forward(record.with_key(f"{number}/{position}").with_value(line))


def total_cents(invoice: dict[str, Any]) -> int:
    """Return the total of an invoice."""
    return sum(line["quantity"] * line["cents"] for line in invoice["lines"])


topology = (
    Topology()
    .add_source("invoices", "invoices")
    .add_processor("sold", Sold, "invoices")
    .add_processor("branches", Branches, "sold")
    .add_sink("shipments", "shipments", "branches")
    .add_repartition("by-customer", "branches")
    .add_processor("rewards", Rewards, "by-customer", stores=[key_value_store("points", key_serde="str")])
    .add_sink("loyalty", "loyalty", "rewards")
    .add_processor("lines", Lines, "branches")
    .add_sink("archive", "archive", "lines")
)

application = Application("point-of-sale", topology, value_serde="json")
