"""What one turn of the event loop writes is sent together."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from penstock.plugins.state.queries.http.writing import Gathering


class Sends:
    """A transport that keeps what it was given."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.is_closed = False

    def __getattr__(self, name: str) -> Any:
        return lambda: None

    def write(self, data: bytes) -> None:
        assert not self.is_closed
        self.sent.append(data)

    def close(self) -> None:
        self.is_closed = True


@given(turns=st.lists(st.lists(st.binary(max_size=5), min_size=1, max_size=4), max_size=5), closes=st.booleans())
def test_each_turn_sends_once_and_closing_sends_the_rest(turns: list[list[bytes]], closes: bool) -> None:
    transport = Sends()

    async def run() -> None:
        gathering: Any = Gathering(transport, asyncio.get_running_loop())  # type: ignore[arg-type]
        for turn in turns:
            for data in turn:
                gathering.write(data)
            if not closes:
                await asyncio.sleep(0)
        gathering.close()

    asyncio.run(run())
    assert b"".join(transport.sent) == b"".join(b"".join(turn) for turn in turns)
    assert len(transport.sent) == (closes and any(map(any, turns))) or sum(map(any, turns)) == len(transport.sent)


def test_a_large_part_does_not_wait() -> None:
    transport = Sends()

    async def run() -> None:
        gathering: Any = Gathering(transport, asyncio.get_running_loop())  # type: ignore[arg-type]
        gathering.write(b"x" * 60_000)
        assert not transport.sent
        gathering.write(b"x" * 60_000)
        assert list(map(len, transport.sent)) == [120_000]
        gathering.close()

    asyncio.run(run())
    assert list(map(len, transport.sent)) == [120_000]
