"""Admin: calls of Kafka's admin API, tried again while brokers are away."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from .failures import Patience, error_of, is_retriable, is_unknown_topic

T = TypeVar("T")
_CONNECT_SECONDS = 1.0
_TRY_SECONDS = 10.0
"""How long the first try of a call waits: a request that was carried out without an answer fails when it is
repeated."""
_NEVER_SECONDS = 3600.0
"""The longest time limit that librdkafka takes for a request."""

Ask = Callable[..., Mapping[Any, "Future[Any]"]]
"""A method of AdminClient: called with the client, what is asked and `request_timeout`, it returns futures."""


class Admin:
    """Makes calls with one admin client, and with a new one after a call without an answer. Thread-safe.

    `make` returns a new client. librdkafka aborts the process when a request's time limit passes before it has found
    the group's coordinator, and the coordinator appears later (its issue 4605). So that limit is never reached: this
    class ends the wait and drops the client with its request. It sends no request before a broker has answered the
    client.
    """

    def __init__(self, make: Callable[[], AdminClient], patience: Patience) -> None:
        self._make = make
        self._patience = patience
        self._lock = threading.Lock()
        self._client: AdminClient | None = None
        self._is_answered = False

    def list_topics(self, doing: str) -> Any:
        """Return the cluster's metadata. Raises as `call`."""
        return self._patience.call(doing, self._metadata)

    def call(
        self, doing: str, ask: Ask, asked: object, read: Callable[[Mapping[Any, Future[Any]]], T], **options: object
    ) -> T:
        """Return `read` of the finished futures of `ask`, which is tried again after retriable errors.

        `options` are given to `ask`. Raises LogError when no try succeeds within `task_timeout`, and KafkaException for
        other errors.
        """
        return self._patience.call(
            doing, lambda seconds: self.once(ask, asked, read, seconds, **options), first=_TRY_SECONDS
        )

    def one(self, doing: str, ask: Ask, asked: object) -> Any:
        """Return the answer to a request with a single future. Raises as `call`."""
        return self.call(doing, ask, asked, lambda futures: next(iter(futures.values())).result())

    def once(
        self, ask: Ask, asked: object, read: Callable[[Mapping[Any, Future[Any]]], T], seconds: float, **options: object
    ) -> T:
        """Do as `call`, with a single try. Raises KafkaException."""
        deadline = time.monotonic() + seconds
        client = self._connected(seconds)
        try:
            futures = ask(client, asked, request_timeout=_NEVER_SECONDS, **options)
            if wait(futures.values(), max(0.0, deadline - time.monotonic())).not_done:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT, f"no answer in {seconds:.0f} s"))
            return read(futures)
        except KafkaException as exception:
            client.poll(0)
            error = error_of(exception)
            # Brokers answer with positive codes; the others are librdkafka's own.
            if error is not None and error.code() < 0 and is_retriable(error):
                self._drop(client)
            raise
        finally:
            del client  # the exception keeps this frame, which would keep the client and its request

    def start(self, ask: Ask, asked: object) -> Callable[[], Mapping[Any, Future[Any]]]:
        """Send a request without waiting; return a function that gives the request up and returns the answers so far.

        Raises KafkaException when no broker answers.
        """
        client = self._connected(_CONNECT_SECONDS)
        futures = ask(client, asked, request_timeout=_NEVER_SECONDS)

        def end() -> Mapping[Any, Future[Any]]:
            if wait(futures.values(), 0).not_done:
                self._drop(client)
            return {each: future for each, future in futures.items() if future.done()}

        return end

    def close(self) -> None:
        """End the client; a later call makes another."""
        with self._lock:
            self._client = None

    def _metadata(self, seconds: float) -> Any:
        client = self._current()
        try:
            listed = client.list_topics(timeout=seconds)
            with self._lock:
                self._is_answered = self._is_answered or client is self._client
        except KafkaException as exception:
            client.poll(0)  # the errors of its connections say more
            # The frames below, of the client's own functions, keep it.
            raise exception.with_traceback(None) from None
        finally:
            del client
        return listed

    def _connected(self, seconds: float) -> AdminClient:
        """Return a client that a broker has answered. Raises KafkaException."""
        while True:
            with self._lock:
                if self._client is not None and self._is_answered:
                    return self._client
            self._metadata(min(seconds, _CONNECT_SECONDS))

    def _current(self) -> AdminClient:
        with self._lock:
            if self._client is None:
                self._client, self._is_answered = self._make(), False
            return self._client

    def _drop(self, client: AdminClient) -> None:
        """Make the next call use another client; this one ends with its last call."""
        with self._lock:
            if self._client is client:
                self._client = None


def ids_in(futures: Mapping[str, Future[Any]]) -> dict[str, str]:
    """Return the ids of those described topics that exist. Raises KafkaException when the request failed."""
    found = {}
    for name, future in futures.items():
        try:
            found[name] = id_of(future.result())
        except KafkaException as exception:
            if not is_unknown_topic(exception):
                raise
    return found


def id_of(found: Any) -> str:
    """Return the id in a topic's description (KIP-516); "" where the broker has none, before 2.8."""
    topic_id = found.topic_id
    return str(topic_id) if topic_id.get_most_significant_bits() or topic_id.get_least_significant_bits() else ""
