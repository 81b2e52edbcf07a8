"""`penstock reshard`."""

from __future__ import annotations

import pytest

from .console import Console

SHOP = """
from penstock import Application
from penstock.dsl import StreamsBuilder

def shop(topic):
    builder = StreamsBuilder()
    builder.stream(topic, value_serde="int").group_by_key().count("counts").to_stream().to("out")
    return Application("shop", builder, engine="embedded")

def backwards(topic, record, partitions):
    return -1

before, after = shop("orders"), shop("orders-3")
"""
TO_THREE = ("--partitions", "3", "--source", "orders=orders-3")


@pytest.fixture
def shop(console: Console) -> Console:
    console.write("shop.py", SHOP)
    console("topics", "create", "orders", "out", "--partitions", "2")
    console("topics", "create", "orders-3", "--partitions", "3")
    console("produce", "orders", "--app", "shop:before", "--key-separator", ":", stdin="ann:1\nben:1\nann:1\n")
    console("run", "shop:before", "--quiet")
    return console


def test_a_new_topic(shop: Console) -> None:
    """Every verb finds the application where it is stored, and its old layout stays until it is given up."""
    found = shop.json("reshard", "shop:before", *TO_THREE, "--dry-run", "--json")
    assert found["sources"] == {"orders": "orders-3"}
    assert [(each["tasks"], each["then"], each["stores"]) for each in found["subtopologies"]] == [(2, 3, ["counts"])]
    result = shop("reshard", "shop:before", *TO_THREE, "--yes")
    assert "shop has 3 partitions, stored as shop-layout-2: start it, with orders-3 in place of orders" in result.stderr
    assert "its layout before is still kept" in shop("reshard", "shop:after", *TO_THREE, "--yes", code=1).stderr
    assert "was resharded, and reads topic 'orders-3'" in shop("run", "shop:before", "--quiet", code=2).stderr
    shop("produce", "orders-3", "--app", "shop:after", "--key-separator", ":", stdin="ann:1\ncat:1\n")
    assert shop.json("lag", "shop:after", "--json")["lag"] == 2
    shop("run", "shop:after", "--quiet")
    assert shop("state", "get", "shop:after", "counts", "ann").stdout.startswith("ann\t3\t")
    assert {each["task"] for each in shop.json("standby", "shop:after", "--once", "--json")} == {"0_0", "0_1", "0_2"}
    assert len(shop.json("status", "shop:after", "--json")["tasks"]) == 3
    assert "has processed records since" in shop("reshard", "shop:after", "--undo", "--yes", code=1).stderr
    assert (shop.directory / ".penstock/changelog/shop/0_0").exists()
    assert "the layout before is deleted" in shop("reshard", "shop:after", "--accept", "--yes").stderr
    assert "there is no layout before" in shop("reshard", "shop:after", "--accept", "--yes").stderr


def test_undo(shop: Console) -> None:
    shop("reshard", "shop:before", *TO_THREE, "--yes")
    assert "has its layout before again" in shop("reshard", "shop:after", "--undo", "--yes").stderr
    shop("produce", "orders", "--app", "shop:before", "--key-separator", ":", stdin="ann:1\n")
    shop("run", "shop:before", "--quiet")
    assert shop("state", "get", "shop:before", "counts", "ann").stdout.startswith("ann\t3\t")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "say one of --partitions N, --accept and --undo"),
        (("--partitions", "3", "--undo"), "say one of"),
        (("--partitions", "4", "--source", "orders=orders-3"), "is to have 4 partitions, and topic 'orders-3' has 3"),
        (("--partitions", "3"), "have the numbers of partitions that they had"),
        (("--partitions", "3", "--source", "order=orders-3"), "no source topic 'order'; did you mean 'orders'?"),
        (("--partitions", "3", "--source", "orders=none"), "topic 'none' does not exist"),
        (("--partitions", "3", "--source", "orders=orders"), "a source topic is replaced by one"),
        ((*TO_THREE, "--drop", "count"), "has no store 'count'; did you mean 'counts'?"),
        ((*TO_THREE, "--source", "orders=other"), "--source says two things of orders: "),
        ((*TO_THREE, "--partitioner", "order=shop:backwards"), "has no source topic 'order'; did you mean 'orders'?"),
        (
            (*TO_THREE, "--partitioner", "orders=shop:backwards"),
            "store 'counts' is not divided by key: task 0_0, key b'ann': source 'KSTREAM-SOURCE-0000000000' "
            "(topic 'orders') raises ValueError: its partitioner chose -1, expected 0 to 1",
        ),
    ],
)
def test_refusals(shop: Console, arguments: tuple[str, ...], message: str) -> None:
    code = 1 if "not divided" in message else 2
    assert message in shop("reshard", "shop:before", "--yes", *arguments, code=code).stderr
    shop("run", "shop:before", "--quiet")


def test_before_the_first_run(console: Console) -> None:
    console.write("shop.py", SHOP)
    console("topics", "create", "orders", "out", "orders-3")
    result = console("reshard", "shop:before", "--partitions", "1", "--source", "orders=orders-3", code=2)
    assert "has not run in the log" in result.stderr


def test_backups_before_and_after(shop: Console) -> None:
    """They are in one place, under the application's own id; each one is restored with its number of partitions."""
    shop("state", "backup", "shop:before", "safe")
    shop("reshard", "shop:before", *TO_THREE, "--yes")
    shop("produce", "orders-3", "--app", "shop:after", "--key-separator", ":", stdin="ann:1\n")
    shop("run", "shop:after", "--quiet")
    shop("state", "backup", "shop:after", "safe")
    first, second = (each["name"] for each in shop.json("state", "backups", "shop:after", "safe", "--json"))
    for target, name, count, tasks in (("shop:after", second, 3, 3), ("shop:before", first, 2, 2)):
        copy = ("--application-id", f"copy-{tasks}")
        shop("state", "restore", target, "safe", "--of", "shop", "--backup", name, *copy)
        shop("run", target, "--quiet", *copy)
        assert shop("state", "get", target, "counts", "ann", *copy).stdout.startswith(f"ann\t{count}\t")
        assert len({each["task"] for each in shop.json("state", "list", target, "--json", *copy)}) == tasks
