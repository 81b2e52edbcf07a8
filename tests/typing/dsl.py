"""Types along a chain of the streams DSL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, assert_type

from penstock import FloatSerde, IntSerde, Serde, StrSerde, Windowed, versioned_store
from penstock.dsl import (
    CogroupedKStream,
    ConnectedKStreams,
    GlobalKTable,
    KGroupedStream,
    KStream,
    KTable,
    SessionWindowedKStream,
    StreamsBuilder,
    TimeWindowedKStream,
    count_of,
    hopping,
    sessions,
    sum_of,
    tumbling,
    within,
)


@dataclass
class Click:
    user: str
    page: str
    ms: int


@dataclass
class User:
    name: str
    region: str


class ClickSerde(Serde[Click]):
    def serialize(self, value: Click) -> bytes:
        raise NotImplementedError

    def deserialize(self, data: bytes) -> Click:
        raise NotImplementedError


def lengths_of(clicks: list[Click]) -> list[int]:
    return [click.ms for click in clicks]


def of_click(click: Click) -> str:
    return click.user


def of_key_and_click(key: str, click: Click) -> int:
    return len(key) + click.ms


def of_click_ms(click: Click) -> int:
    return click.ms


def longest(ms: int, click: Click) -> tuple[int, str]:
    return max(ms, click.ms), click.page


def longer(ms: int, click: Click) -> int:
    return max(ms, click.ms)


def sources(builder: StreamsBuilder) -> None:
    assert_type(builder.stream("clicks", key_serde=StrSerde(), value_serde=ClickSerde()), KStream[str, Click])
    assert_type(builder.stream("a", "b", value_serde=IntSerde(), name="n"), KStream[Any, int])
    assert_type(builder.stream(pattern="a.*", key_serde=FloatSerde(), offset_reset="1d"), KStream[float, Any])
    assert_type(builder.stream("clicks", key_serde="str", value_serde="json"), KStream[Any, Any])
    assert_type(builder.table("users", "users", key_serde=StrSerde(), ttl="1d"), KTable[str, Any])
    assert_type(builder.table("users", versioned_store("users", history_retention="1d")), KTable[Any, Any])
    assert_type(builder.global_table("users", key_serde=StrSerde(), value_serde=IntSerde()), GlobalKTable[str, int])
    by_name: KStream[str, Click] = builder.stream("clicks")
    assert_type(by_name, KStream[str, Click])

    builder.stream("clicks", value_serde=5)  # type: ignore[arg-type]
    builder.stream("clicks", offset_rest="1d")  # type: ignore[call-arg]
    wrong: KStream[str, int] = builder.stream("a", key_serde=StrSerde(), value_serde=ClickSerde())  # type: ignore[arg-type]
    del wrong


def stateless(clicks: KStream[str, Click]) -> None:
    assert_type(clicks.filter(lambda click: click.ms > 5), KStream[str, Click])
    assert_type(clicks.filter_not(lambda key, click: key == click.user, with_key=True), KStream[str, Click])
    assert_type(clicks.map_values(lambda click: click.ms), KStream[str, int])
    assert_type(clicks.map_values(of_key_and_click, with_key=True), KStream[str, int])
    assert_type(clicks.map_values_batch(lengths_of, as_="numpy", max_records=9), KStream[str, int])
    clicks.map_values_batch(lengths_of, as_="torch")  # type: ignore[call-overload]
    assert_type(clicks.flat_map_values(lambda click: click.page.split("/")), KStream[str, str])
    assert_type(clicks.select_key(lambda click: click.ms), KStream[int, Click])
    assert_type(clicks.map(lambda click: (click.page, click.ms)), KStream[str, int])
    assert_type(clicks.flat_map(lambda key, click: [(click.ms, key)], with_key=True), KStream[int, str])
    assert_type(clicks.peek(print), KStream[str, Click])
    assert_type(clicks.with_timestamp(lambda click: click.ms), KStream[str, Click])
    assert_type(clicks.with_timestamp(lambda record: record.timestamp + 1, with_record=True), KStream[str, Click])
    assert_type(clicks.with_headers(lambda click: {"page": click.page.encode()}), KStream[str, Click])
    assert_type(clicks.with_headers(lambda key, click: [(key, None)], with_key=True), KStream[str, Click])
    assert_type(clicks.stateful_map(longest, int, "longest", ttl="1d"), KStream[str, str])
    assert_type(clicks.connect(clicks.map_values(of_click)), ConnectedKStreams[str, Click, str])
    assert_type(clicks.merge(clicks.filter(of_click)), KStream[str, Click])
    assert_type(clicks.branch({"slow": lambda click: click.ms > 5}, default="rest")["rest"], KStream[str, Click])
    assert_type(clicks.split().branch(lambda click: click.ms > 5).default(), dict[str, KStream[str, Click]])
    assert_type(clicks.repartition("by-user", partitions=4), KStream[str, Click])
    assert_type(clicks.map_values(of_click).map_values(len).select_key(str), KStream[str, int])

    clicks.map_values(lambda click: click.millis)  # type: ignore[attr-defined]
    clicks.split().branch(lambda click: click.millis > 5)  # type: ignore[attr-defined]
    clicks.foreach(lambda click: print(click.millis))  # type: ignore[attr-defined]
    clicks.map_values(of_key_and_click)  # type: ignore[arg-type]
    clicks.map_values(of_click, with_key=True)  # type: ignore[call-overload]
    clicks.map(of_click)  # type: ignore[arg-type]
    clicks.map_values(of_click, nmae="n")  # type: ignore[call-overload]
    clicks.filter(lambda key, click: click.millis, with_key=True)  # type: ignore[call-overload]
    clicks.map_values(of_click, with_key=len("") > 0)  # type: ignore[call-overload]
    clicks.merge(clicks.map_values(of_click))  # type: ignore[arg-type]
    clicks.to(5)  # type: ignore[arg-type]
    clicks.with_timestamp(of_click)  # type: ignore[arg-type]
    clicks.with_headers(len)  # type: ignore[arg-type]
    clicks.stateful_map(longest, str)  # type: ignore[misc]
    clicks.stateful_map(of_click, int)  # type: ignore[misc,arg-type]
    clicks.stateful_map(longest, int, cached=False)  # type: ignore[call-overload]
    clicks.connect(clicks.select_key(of_click_ms))  # type: ignore[arg-type]


def aggregations(clicks: KStream[str, Click]) -> None:
    by_user = clicks.group_by_key()
    assert_type(by_user, KGroupedStream[str, Click])
    by_page = clicks.group_by(lambda click: click.page)
    assert_type(by_page, KGroupedStream[str, Click])
    assert_type(clicks.group_by(of_key_and_click, with_key=True), KGroupedStream[int, Click])
    assert_type(by_page.count("pages"), KTable[str, int])
    assert_type(clicks.map_values(of_click).group_by_key().reduce(lambda one, two: one + two), KTable[str, str])
    assert_type(by_user.aggregate(int, longer, "longest"), KTable[str, int])
    assert_type(by_user.count().to_stream(), KStream[str, int])
    assert_type(by_user.cogroup(longer), CogroupedKStream[str, int])
    assert_type(by_user.cogroup(longer).aggregate(int), KTable[str, int])

    five = by_user.windowed_by(tumbling("5m", grace="1m"))
    assert_type(five, TimeWindowedKStream[str, Click])
    assert_type(five.count(), KTable[Windowed, int])
    assert_type(five.aggregate(int, longer), KTable[Windowed, int])
    visits = by_user.windowed_by(sessions(gap="30m", grace="0s"))
    assert_type(visits, SessionWindowedKStream[str, Click])
    assert_type(visits.aggregate(int, longer, merger=max), KTable[Windowed, int])
    hops = by_user.windowed_by(hopping("5m", every="1m", grace="0s")).count().to_stream()
    assert_type(hops.map_values(lambda count: count / 5), KStream[Windowed, float])

    by_user.aggregate(str, longer)  # type: ignore[misc]
    by_user.reduce(longer)  # type: ignore[arg-type]
    by_user.windowed_by("5m")  # type: ignore[call-overload]
    by_user.count(retentoin="1d")  # type: ignore[call-arg]
    by_user.map_values(of_click)  # type: ignore[attr-defined]


def tables(clicks: KStream[str, Click], users: KTable[str, User], counts: KTable[str, int]) -> None:
    assert_type(clicks.to_table(), KTable[str, Click])
    assert_type(users.filter(lambda user: user.region == "eu"), KTable[str, User])
    assert_type(users.map_values(lambda user: user.name), KTable[str, str])
    assert_type(users.group_by(lambda user: user.region).count(), KTable[str, int])
    assert_type(users.join(counts, lambda user, count: f"{user.name} {count}"), KTable[str, str])
    assert_type(users.to_stream(), KStream[str, User])
    assert_type(users.to_stream(lambda key, user: len(key), with_key=True), KStream[int, User])
    assert_type(
        users.join(counts, lambda key, user, count: (key, user, count), with_key=True),
        KTable[str, tuple[str, User, int]],
    )
    assert_type(users.left_join(counts, lambda user, count: count, name="n"), KTable[str, int | None])
    assert_type(
        users.outer_join(counts, lambda user, count: (user, count)), KTable[str, tuple[User | None, int | None]]
    )
    by_region = users.join(counts, lambda user, count: count + 1, "joined", foreign_key=lambda user: user.region)
    assert_type(by_region, KTable[str, int])
    assert_type(counts.suppress("1m"), KTable[str, int])
    assert_type(clicks.group_by_key().agg("sums", total=sum_of("ms")), KTable[str, dict[str, Any]])
    grouped = users.group_by(lambda user: user.region)
    assert_type(grouped.agg("ages", rows=count_of()), KTable[str, dict[str, Any]])
    assert_type(grouped.aggregate(int, lambda n, user: n + len(user.region), lambda n, user: n - 1), KTable[str, int])
    assert_type(grouped.reduce(lambda one, user: user, lambda one, user: one), KTable[str, User])
    grouped.aggregate(int, lambda n, user: n + user.nme, lambda n, user: n)  # type: ignore[attr-defined]

    users.join(counts, lambda user, count: user.nme)  # type: ignore[attr-defined]
    users.left_join(counts, lambda user, count: count + 1)  # type: ignore[operator]
    users.join(counts, lambda user, count: 1, foreign_key=lambda user: user.nme)  # type: ignore[attr-defined]
    users.map_values(lambda user: user.nme)  # type: ignore[attr-defined]
    users.filter(lambda key, user: user.nme, "kept", with_key=True)  # type: ignore[call-overload]
    users.filter(lambda user: user.region == "eu", "kept", ttll="1d")  # type: ignore[call-overload]
    users.join(counts, lambda user, count: 1, foreignkey=lambda user: user.name)  # type: ignore[call-overload]
    users.join(clicks, of_click)  # type: ignore[call-overload]


def stream_joins(clicks: KStream[str, Click], orders: KStream[str, float], users: KTable[str, User]) -> None:
    minutes = within("10m", grace="1m")

    def both(click: Click, order: float) -> float:
        return click.ms * order

    def perhaps(click: Click, order: float | None) -> str:
        return f"{click.page} {order}"

    assert_type(clicks.join(orders, both, minutes), KStream[str, float])
    assert_type(clicks.left_join(orders, perhaps, minutes), KStream[str, str])
    assert_type(clicks.join(users, lambda click, user: (click.page, user.region)), KStream[str, tuple[str, str]])

    clicks.left_join(orders, both, minutes)  # type: ignore[arg-type]
    clicks.join(orders, both)  # type: ignore[call-overload]
    clicks.join(orders, lambda click, order: click.millis, minutes)  # type: ignore[attr-defined]


def global_joins(clicks: KStream[str, Click], regions: GlobalKTable[int, str]) -> None:
    joined = clicks.join(regions, lambda click, region: region.upper(), select_key=lambda click: click.ms)
    assert_type(joined, KStream[str, str])

    def of_both(user: str, region: int, click: Click, name: str | None) -> int:
        return len(user) + region + click.ms

    def select(user: str, click: Click) -> int:
        return click.ms

    assert_type(clicks.join(regions, of_both, select_key=select, with_both_keys=True), KStream[str, int])
    clicks.left_join(regions, of_both, select_key=select, with_both_keys=True)  # type: ignore[call-overload]
