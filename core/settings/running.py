"""Running: the handle of an application that was started in this process."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Protocol


class Running(Protocol):
    """A run in a thread of this process. Leaving its `with` or `async with` block stops it.

    Entering the block waits until the tasks begin to run, and raises what prevented that. Leaving it raises what the
    application failed with, unless the block itself failed.
    """

    @property
    def state(self) -> str:
        """Return "starting", "running", "stopping", "stopped" or "failed"."""
        ...

    @property
    def error(self) -> BaseException | None:
        """The error that ended the run; None while it runs, and when it ended without one."""
        ...

    def wait(self, timeout: float | None = None) -> Any:
        """Wait until the run ends by itself, or is stopped; return its summary.

        Raises what the application failed with, and TimeoutError after `timeout` seconds.
        """
        ...

    def stop(self, timeout: float | None = None) -> Any:
        """Let tasks commit, stop the run, and return its summary; again, it changes nothing. Raises as `wait`."""
        ...

    def __enter__(self) -> Running: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    async def __aenter__(self) -> Running: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
