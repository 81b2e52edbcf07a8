"""A server of PostgreSQL for the tests of a process, and a database without tables for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .postgres_server import PostgresServer, programs


@pytest.fixture(scope="session")
def shared_postgres() -> Iterator[PostgresServer]:
    if programs() is None:
        pytest.skip("PostgreSQL is not installed here")
    server = PostgresServer()
    yield server
    server.close()


@pytest.fixture
def postgres(shared_postgres: PostgresServer) -> PostgresServer:
    """A server with an empty schema."""
    shared_postgres.query("DROP SCHEMA public CASCADE")
    shared_postgres.query("CREATE SCHEMA public")
    return shared_postgres


@pytest.fixture
def own_postgres() -> Iterator[PostgresServer]:
    """A server that the test may kill and freeze."""
    if programs() is None:
        pytest.skip("PostgreSQL is not installed here")
    server = PostgresServer()
    yield server
    server.close()
