"""Examples that are asked over HTTP while they run: the music chart, and the word count."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock import Application, OutputBatch, StoreUnavailableError
from penstock.client import Client, QueryError

from ..waiting import wait_until
from .running import load, opened


@contextmanager
def asked(
    application: Application, topics: dict[str, list[tuple[str, str]]], caplog: pytest.LogCaptureFixture
) -> Iterator[Client]:
    """Run an application over records of its topics; return a client of its server."""
    caplog.set_level(logging.INFO, "penstock.queries")
    with opened(application) as log:
        for topic, rows in topics.items():
            log.create_topic(topic, 2)
            keys: list[bytes | None] = [key.encode() for key, _ in rows]
            log.append(OutputBatch(topic, keys, [text.encode() for _, text in rows], [1] * len(rows)))
    with application.start():
        url = next(found[0] for each in caplog.messages if (found := re.search(r"http://\S+", each)))
        with Client(url) as client:
            yield client


def value(client: Client, store: str, key: str) -> Any:
    try:
        found = client.store(store).get(key)
    except (QueryError, StoreUnavailableError):  # it has not begun to answer
        return None
    return None if found is None else found.value


def settings(tmp_path: Path) -> dict[str, Any]:
    return {"engine": "embedded", "data_dir": str(tmp_path / "data"), "queries": "127.0.0.1:0"}


def test_the_music_chart(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    songs = [(f"s{number}", f'{{"title": "T{number}", "genre": "{"pop" if number % 2 else "jazz"}"}}')
             for number in range(14)]  # fmt: skip
    plays = [(f"listener {number}", f"s{song}") for song in range(14) for number in range(song + 1)]
    application = load("09_music_chart").application.with_settings(**settings(tmp_path))
    with asked(application, {"songs": songs, "plays": plays}, caplog) as client:
        for genre, first in (("jazz", 12), ("pop", 13)):
            expected = [
                {"title": f"T{number}", "genre": genre, "plays": number + 1} for number in range(first, first - 10, -2)
            ]
            wait_until(lambda: value(client, "chart", genre) == expected, f"the chart of {genre}")  # noqa: B023
        found = {each.key: each.value for each in client.store("plays-of-songs").entries()}
        assert found == {f"s{number}": number + 1 for number in range(14)}


def test_the_word_count(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    text = "all the world is a stage and all the men and women merely players"
    application = load("02_word_count").application.with_settings(**settings(tmp_path))
    lines = [("", text)] * 10
    with asked(application, {"text": lines, "word-counts": []}, caplog) as client:
        wait_until(lambda: value(client, "counts", "the") == 20, "all lines are counted")
        wait_until(lambda: value(client, "counts", "players") == 10, "all lines are counted")
        words = {each.key: each.value for each in client.store("counts").entries()}
    assert words == {word: 10 * count for word, count in Counter(text.split()).items()}
