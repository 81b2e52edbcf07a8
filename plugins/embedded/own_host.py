"""OwnHost: the tasks of an application in the process of its driver."""

from __future__ import annotations

from penstock import RuntimeUnavailableError, World
from penstock.plugins.hosts.engine import HostInfo
from penstock.plugins.hosts.reports import SlotMessage, TaskFailure
from penstock.plugins.hosts.slot_engine import SlotCargo, SlotEngine, SlotRequest
from penstock.plugins.hosts.status import Meter


class OwnHost:
    """The one slot of an application, in this process. One thread calls all methods."""

    def __init__(self, cargo: SlotCargo, world: World) -> None:
        self._application_id = cargo.application.id
        self._cargo = cargo
        self._world = world
        self._engine: SlotEngine | None = None

    def call(self, request: SlotRequest) -> SlotMessage:
        """Return what the tasks did; an error is in the message."""
        try:
            if self._engine is None:
                self._engine = self._cargo.engine(HostInfo(self._world.token(8), 0, "", "first", Meter(), self._world))
            message: SlotMessage = self._engine.handle(request)
            return message
        except Exception as error:
            failure = TaskFailure.of_slot(self._application_id, request.plan.slot, error)
            return SlotMessage(request.plan.slot, request.executor, failure=failure)

    def end_stuck(self, message: SlotMessage) -> None:
        """Raise RuntimeUnavailableError: what a processor of this process does cannot be ended from outside."""
        raise RuntimeUnavailableError(
            f"application {self._application_id!r}: its tasks have made no turn for {message.stuck_seconds:.0f} s "
            f"({message.stuck_in}): a processor does not return. Nothing since their last commits counts, and nothing "
            "is lost: correct the processor, and start the application again"
        )

    def close(self) -> None:
        """Commit where tasks work on their own, and close everything."""
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()
