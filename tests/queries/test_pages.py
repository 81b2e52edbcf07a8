"""Pages of entries: what stays while the task commits between them is on one page, once; and what a prefix finds."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import run
from penstock.client import Client, QueryError
from penstock.plugins.dsl import StreamsBuilder, TimeWindows
from penstock.plugins.state.queries.http import answers
from penstock.program.serdes import make_serde
from penstock.queries import Queries
from penstock.support.text_form import from_json

from ..replicas.every_kind import INPUT, NAMES
from ..spark.surroundings import Surroundings
from .served import ask, served
from .test_kinds import Asked
from .test_serdes import application, keep

ROWS = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["1", "2", "3", ""])), min_size=1, max_size=4)


def entries(url: str, asked: Asked, store: str, **chosen: Any) -> tuple[list[str], str | None]:
    """Return entries at the last commit, each as text, and the token of the next page."""
    commit = asked.log.last_commit("app", "0_0", [INPUT])
    assert commit is not None
    bounds = {"at_least": f"in:0:{commit.positions[INPUT]}", "wait": "30000"}
    status, answer = ask(url, f"/v1/stores/{store}/entries", given={**bounds, **chosen})
    assert status == 200, answer
    return [json.dumps(each) for each in answer["entries"]], answer["page"]


@settings(deadline=None, max_examples=8)
@given(
    store=st.sampled_from(sorted(NAMES)), key=st.sampled_from([{}, {"key": "a"}]), limit=st.integers(1, 4),
    first=st.lists(ROWS, min_size=4, max_size=8), commits=st.lists(ROWS, min_size=1, max_size=4),
)  # fmt: skip
def test_what_stays_is_on_one_page(
    store: str,
    key: dict[str, str],
    limit: int,
    first: list[list[tuple[str, str]]],
    commits: list[list[tuple[str, str]]],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Entries expire, are added and deleted between two pages, before and behind where the next one begins."""
    with closing(Asked(tmp_path_factory.mktemp("app"))) as asked:
        for rows in first:
            asked.writer.commit(rows)
        with served(asked.here) as url:
            contents: list[Counter[str]] = []
            found, more = Counter[str](), list(commits)
            page: str | None = None
            while True:
                contents.append(Counter(entries(url, asked, store, **key)[0]))
                next_one = {} if page is None else {"page": page}
                shown, page = entries(url, asked, store, limit=limit, **key, **next_one)
                found.update(shown)
                if page is None:
                    break
                if more:
                    asked.writer.commit(more.pop())
    for each in set[str]().union(*contents):
        counts = [content[each] for content in contents]
        assert min(counts) <= found[each], f"{each} was there all the time, and is on no page"
        assert found[each] <= max(counts), f"{each} is on two pages"


class LongAndShort(TimeWindows):
    """A window begins every 10 ms, and each second one ends after the next one's end."""

    size_ms, grace_ms = 100, 0

    def windows_for(self, timestamp: int) -> list[tuple[int, int]]:
        starts = range(max(0, timestamp - 100) // 10 * 10, timestamp + 1, 10)
        windows = [(start, start + (15 if start % 20 else 100)) for start in starts]
        return [(start, end) for start, end in windows if start <= timestamp < end]


@pytest.mark.parametrize("limit", [1, 2, 3])
@pytest.mark.parametrize("key", [None, "a"])
def test_windows_that_end_before_earlier_ones_are_on_pages(key: str | None, limit: int, tmp_path: Path) -> None:
    builder = StreamsBuilder()
    builder.stream("in").group_by_key().windowed_by(LongAndShort()).count("counts")
    with Surroundings(tmp_path) as surroundings:
        surroundings.create(**{"in": 1})
        rows = [("a", 5), ("a", 15), ("a", 37), ("b", 40)]
        surroundings.put("in", [(name, "", at) for name, at in rows])
        given = surroundings.application("app", builder, engine="embedded", state_serde="str")
        run(given)
        expected = Counter((name, *window) for name, at in rows for window in LongAndShort().windows_for(at))
        with Queries.of_this_machine(given) as queries, served(queries) as url:
            chosen: dict[str, Any] = {"limit": limit} | ({} if key is None else {"key": key})
            found: list[tuple[Any, ...]] = []
            while True:
                answer = ask(url, "/v1/stores/counts/entries", given=chosen)[1]
                found += [(each["key"], each["start"], each["end"], each["value"]) for each in answer["entries"]]
                if answer["page"] is None:
                    break
                assert answer["page"] != chosen.get("page"), "the next page is this one"
                chosen["page"] = answer["page"]
    assert found == [(*window, count) for window, count in sorted(expected.items()) if key in (None, window[0])]


@pytest.mark.parametrize("serde", ["str", "bytes", "json", "msgpack", "pickle"])
def test_a_prefix_finds_all_keys_or_is_refused(serde: str, tmp_path: Path) -> None:
    """Text of other serdes has a length in front, or a quote behind: the entries would be some of those asked for."""
    made = application(tmp_path, serde, serde, "int", value_serde="bytes")
    texts = ["a", "ab", "ab c", "ab!", "abc", "ac", "b"]
    keys = [each.encode() for each in texts] if serde == "bytes" else texts
    keep(made, *keys, serialize=make_serde(serde, "keys").serialize)
    path = "/v1/stores/kept/entries"
    with Queries.of_this_machine(made) as queries, served(queries) as url:
        for prefix in ("a", "ab", ""):
            for accept in ("application/json", "application/x-ndjson"):
                given = {"prefix": prefix if serde in ("str", "bytes") else json.dumps(prefix)}
                status, answer = ask(url, path, given=given, accept=accept)
                if serde not in ("str", "bytes"):
                    assert status == 400 and "another key serde than str and bytes" in answer["error"]["message"]
                    continue
                rows = answer["entries"] if isinstance(answer, dict) else map(json.loads, answer.splitlines())
                found = {from_json(each["key"]) for each in rows}
                assert found == {key for key, text in zip(keys, texts, strict=True) if text.startswith(prefix)}


@pytest.mark.parametrize("store", ["plain", "windows", "lists"])
def test_a_page_ends_where_its_entries_are_large(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever its limit: a thousand values of 1 MB would be a page of 1 GB. Each page has one entry at least."""
    monkeypatch.setattr(answers, "MOST_PAGE_BYTES", 1_000)
    with closing(Asked(tmp_path)) as asked:
        rows = [(f"k{number}", "x" * 400) for number in range(7)]
        asked.writer.commit([*rows, ("large", "y" * 5_000), ("last", "z")])
        with served(asked.here) as url, Client(url) as client:
            entries(url, asked, store)  # the commit is there
            pages: list[str] = []
            counts: list[int] = []
            given: dict[str, Any] = {"limit": 10}
            while True:
                found, page = entries(url, asked, store, **given)
                pages += found
                counts.append(len(found))
                if page is None:
                    break
                given["page"] = page
            assert len(pages) == len(set(pages)) == 9 and counts == [3, 3, 2, 1]
            assert [len(page) for page in client.store(store).pages()] == counts
            assert [each.key for each in client.store(store).entries()] == [key for key, _ in rows] + ["large", "last"]
            status, lines = ask(url, f"/v1/stores/{store}/entries", accept="application/x-ndjson")
            assert status == 200 and lines.decode().splitlines() == [
                json.dumps(json.loads(each), separators=(",", ":")) for each in pages
            ]
            assert len(entries(url, asked, store, limit=2)[0]) == 2


def test_entries_of_several_keys_are_not_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client asks for fewer keys then."""
    monkeypatch.setattr(answers, "MOST_MANY_BYTES", 1_000)
    with closing(Asked(tmp_path)) as asked:
        keys = [f"k{number}" for number in range(9)]
        asked.writer.commit([(key, "x" * 600) for key in keys])
        with served(asked.here) as url, Client(url) as client:
            entries(url, asked, "plain")  # the commit is there
            body = json.dumps({"keys": keys}).encode()
            status, answer = ask(url, "/v1/stores/plain/get", method="POST", body=body)
            assert (status, answer["error"]["code"]) == (413, "too_large")
            found = client.store("plain").get_many([*keys, "none"])
            assert [each and (each.key, each.value) for each in found] == [*((key, "x" * 600) for key in keys), None]
            two = json.dumps({"keys": keys[:2]}).encode()
            assert ask(url, "/v1/stores/plain/get", method="POST", body=two)[0] == 200


def test_a_client_asks_for_many_keys_and_says_which_are_too_long(tmp_path: Path) -> None:
    """More than 1,000 keys were refused, and an address that was too long was "400 without JSON"."""
    with closing(Asked(tmp_path)) as asked:
        keys = [f"k{number}" for number in range(2_001)]
        asked.writer.commit([(key, f"v{key}") for key in keys])
        long = "x" * 100_000
        with served(asked.here) as url, Client(url) as client:
            entries(url, asked, "plain")  # the commit is there
            store = client.store("plain")
            found = store.get_many([*keys, long])
            assert [each and each.value for each in found] == [*(f"v{key}" for key in keys), None]
            assert store.get_many([]) == []
            many = store.get_many([keys[0], *("x" * 10_000 for _ in range(998)), keys[1]])
            assert [each.value for each in many if each is not None] == [f"v{keys[0]}", f"v{keys[1]}"]
            with pytest.raises(QueryError, match="the body has more than 1,048,576 bytes") as refused:
                store.get_many([keys[0], "x" * (8 << 20)])  # more than what a socket buffers
            assert refused.value.status == 413
            said = "400 without JSON: the key makes an address of 100,.* `get_many` sends keys"
            with pytest.raises(QueryError, match=said):
                store.get(long)
            with pytest.raises(QueryError, match=said):
                store.changes(long)
