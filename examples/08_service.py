r"""A web service with an application inside. Teaches start, health, progress and end of the embedded engine.

$ pip install fastapi uvicorn
$ penstock topics create clicks totals --partitions 2
$ uvicorn --app-dir examples 08_service:service &
$ printf 'anna:/home\nben:/home\nanna:/cart\n' | penstock produce clicks --key-separator :
$ curl localhost:8000/health localhost:8000/progress
$ penstock consume totals --print-key --value-serde int

The application needs the service no more than the service needs Spark: this runs it alone.

$ penstock run examples/08_service.py:application
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Response

from penstock import Application, Progress
from penstock.config_sources import layers
from penstock.dsl import StreamsBuilder

builder = StreamsBuilder()
builder.stream("clicks").group_by_key().count("totals").to_stream().to("totals")

application = Application("click-service", builder, engine="embedded")


@asynccontextmanager
async def lifespan(service: FastAPI) -> AsyncIterator[None]:
    """Start the application before the first request, and let it commit and stop after the last one.

    It has the settings that `penstock run` would give it, such as PENSTOCK_LOG=kafka:HOST:PORT. What prevents its
    start, such as a missing topic, prevents that of the service.
    """
    service.state.processed = {"read": 0, "written": 0, "waiting": 0}
    async with application.under(layers()).start(on_progress=note_progress) as service.state.running:
        yield


service = FastAPI(lifespan=lifespan)


def note_progress(progress: Progress) -> None:
    """Keep what the service says of the run; the run's thread calls this."""
    service.state.processed = {
        "read": progress.records_in,
        "written": progress.records_out,
        "waiting": progress.lag,
    }


@service.get("/health")
def health(response: Response) -> dict[str, Any]:
    """Answer 503 when the application has failed, so that whoever asks starts the service again."""
    running = service.state.running
    if running.state in ("stopped", "failed"):
        response.status_code = 503
    return {"state": running.state, "error": running.error and str(running.error)}


@service.get("/progress")
def progress() -> dict[str, int]:
    """Answer how many records the application has read and written since its start, and how many wait in its topics.

    Records count when they are committed, with their outputs and state.
    """
    answer: dict[str, int] = service.state.processed
    return answer
