"""MachineHost and OwnHost: where the tasks of a slot run, a task host of this machine or the driver's process."""

from __future__ import annotations

import os
from dataclasses import replace

from penstock import RuntimeUnavailableError, World
from penstock.plugins.engine.host.client import Client, HostSpec, end_hosts
from penstock.plugins.engine.host.place import Process, started_at
from penstock.plugins.engine.host.reports import Meter, SlotMessage, TaskFailure
from penstock.plugins.engine.host.slot_engine import HostInfo, SlotCargo, SlotEngine, SlotRequest

_SILENT_SECONDS = 12.0
"""Seconds without a sign, and without processor time, after which a host is frozen; one that works gives a sign every
five, unless a call keeps Python's lock."""


class MachineHost:
    """A host in a process of its own: started when it is first called, and again when it is lost.

    It ends with this process. One thread at a time calls its methods.
    """

    def __init__(self, application_id: str, spec: HostSpec) -> None:
        self._application_id = application_id
        own = Process(os.getpid(), started_at(os.getpid()), "the process of the engine")
        self._client = Client(replace(spec, watched=(own,)))
        self._has_answered = False

    def call(self, request: SlotRequest) -> SlotMessage:
        """Return what the tasks did; an error is in the message, and so are hosts that were lost."""
        reason = "host lost" if self._has_answered else "first"
        try:
            message: SlotMessage = self._client.call(request, reason, _SILENT_SECONDS)
            self._has_answered = True
        except Exception as error:
            failure = TaskFailure.of_slot(self._application_id, request.plan.slot, error)
            message = SlotMessage(request.plan.slot, request.executor, failure=failure)
        return replace(message, losses=self._client.take_losses())

    def end_stuck(self, message: SlotMessage) -> None:
        """End the host, because its tasks make no turn: the next call starts another one."""
        self._client.close()
        process = 0 if message.host is None else message.host.process
        end_hosts([self._client.spec.key], "its tasks have made no turn for too long", process)

    def close(self) -> None:
        """End the host; nothing of it is left when this returns."""
        self._client.close()
        end_hosts([self._client.spec.key], "the run has ended")


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
