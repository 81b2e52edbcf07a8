"""MachineHost: a task host of this machine, which has a slot of an application."""

from __future__ import annotations

import os
from dataclasses import replace

from penstock.plugins.hosts.client import Client, HostSpec, end_hosts
from penstock.plugins.hosts.life import Process, started_at
from penstock.plugins.hosts.reports import SlotMessage, TaskFailure
from penstock.plugins.hosts.slot_engine import SlotRequest

_SILENT_SECONDS = 12.0
"""Seconds without a sign after which a host is frozen; one that works gives a sign every five."""


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
