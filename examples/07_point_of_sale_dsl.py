r"""The point of sale of example 3, without a class. Teaches the streams DSL: verbs, branches, an aggregation.

$ penstock topics create invoices shipments loyalty archive --partitions 2
$ echo '{"number":"I-1","customer":"anna","loyal":true,"delivery":"home","lines":[{"quantity":2,"cents":350}]}' \
    | penstock produce invoices --value-serde json
$ penstock run examples/07_point_of_sale_dsl.py:application
$ penstock consume loyalty --value-serde json
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from penstock import Application
from penstock.dsl import StreamsBuilder

CENTS_A_POINT = 100


def add_points(so_far: dict[str, Any], invoice: dict[str, Any]) -> dict[str, Any]:
    """Return what a customer earned with an invoice, and all points so far."""
    earned = sum(line["quantity"] * line["cents"] for line in invoice["lines"]) // CENTS_A_POINT
    return {"invoice": invoice["number"], "earned": earned, "points": so_far.get("points", 0) + earned}


def lines(invoice: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Return the lines of an invoice, each with a key of its own."""
    for position, line in enumerate(invoice["lines"], 1):
        yield f"{invoice['number']}/{position}", line


builder = StreamsBuilder()
sold = builder.stream("invoices").filter(lambda invoice: invoice["lines"])
sold.filter(lambda invoice: invoice["delivery"] == "home").to("shipments")
loyal = sold.filter(lambda invoice: invoice["loyal"]).group_by(lambda invoice: invoice["customer"], name="by-customer")
# With a record cache, of several invoices of a customer between two commits only the last would go on.
loyal.aggregate(dict, add_points, "points", cached=False).to_stream().to("loyalty")
sold.flat_map(lines).to("archive")

application = Application("point-of-sale-dsl", builder, value_serde="json")
