"""event_stream: the changes of a store as server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from typing import Any

from penstock import StoreUnavailableError
from penstock.plugins.serdes.json_text import dump_json
from penstock.support.packages import needed

from ..changes_feed import ChangesEndedError, Subscription, token_of
from .answers import Data, Followed
from .guard import refusal

with needed("the server of queries", "serve"):
    from starlette.responses import StreamingResponse

EVENT_STREAM = "text/event-stream"
_QUIET_SECONDS = 15.0
"""After which a stream without changes says where it is, so that proxies keep it open."""
_LOOK_SECONDS = 1.0
"""Seconds between two looks at whether the server ends."""


class Waking:
    """Wakes a coroutine of the event loop that made it, from any thread."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()

    def notify(self) -> None:
        """Wake it; nothing if the loop has ended."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._event.set)

    async def wait(self, seconds: float) -> bool:
        """Wait for `notify`, up to so many seconds; return whether it was called since `clear`."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._event.wait(), seconds)
        return self._event.is_set()

    def clear(self) -> None:
        """Forget earlier calls of `notify`."""
        self._event.clear()


async def has_begun(subscription: Subscription, waking: Waking, seconds: float) -> None:
    """Wait until a subscription has a place to begin.

    Raises StoreUnavailableError after so many seconds, and what has ended the subscription before.
    """
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    # Changes of one task wake it, too, while others have not begun.
    while not subscription.has_begun:
        waking.clear()
        if subscription.has_begun:
            return
        while subscription.has_ended:
            subscription.take()  # what waits, then it raises what has ended it
        if not await waking.wait(max(0.0, until - loop.time())):
            raise StoreUnavailableError("the log has not said in time where the changes begin")


def event_stream(
    followed: Followed, waking: Waking, is_ending: Callable[[], bool], headers: dict[str, str]
) -> StreamingResponse:
    """Return the answer that sends changes until the client leaves; else the last event says why it ends.

    The first event, `begin`, has the id from which on changes come; then each commit's last change has one.
    """
    return StreamingResponse(_events(followed, waking, is_ending), media_type=EVENT_STREAM, headers=headers)


async def _events(followed: Followed, waking: Waking, is_ending: Callable[[], bool]) -> AsyncIterator[bytes]:
    loop, subscription = asyncio.get_running_loop(), followed.subscription
    try:
        yield b"event: begin\n" + _id(subscription) + b"data: {}\n\n"
        said_at = loop.time()
        while not is_ending():
            waking.clear()
            entries = subscription.take()
            if entries:
                # In a thread: a serde may be slow.
                yield await asyncio.to_thread(_lines, entries, followed.shown, _id(subscription))
                said_at = loop.time()
            elif loop.time() - said_at > _QUIET_SECONDS:
                yield _id(subscription) + b"\n"
                said_at = loop.time()
            else:
                await waking.wait(_LOOK_SECONDS)
        yield _end("closed", "the server ends")
    except ChangesEndedError as error:
        yield _end(error.code, str(error))
    except Exception as error:
        refused = refusal(error)
        yield _end(refused.code, refused.message)
    finally:
        followed.close()


def _lines(entries: Sequence[Any], shown: Callable[[Any], Data], last: bytes) -> bytes:
    events = [b"event: change\ndata: " + dump_json(shown(each)) + b"\n" for each in entries]
    return b"\n".join(events) + last + b"\n"


def _id(subscription: Subscription) -> bytes:
    return b"id: " + token_of(subscription.position()).encode() + b"\n"


def _end(code: str, message: str) -> bytes:
    return b"event: end\ndata: " + dump_json({"error": {"code": code, "message": message}}) + b"\n\n"
