"""The client of a schema registry, with errors that say what to do."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

from penstock import ConfigError, SerdeError, SerdeUnavailableError
from penstock.support.packages import needed
from penstock.support.urls import url_scheme

with needed("a schema registry", "avro"):
    from confluent_kafka.schema_registry import RegisteredSchema, Schema, SchemaRegistryClient
    from confluent_kafka.schema_registry._sync.mock_schema_registry_client import MockSchemaRegistryClient
    from confluent_kafka.schema_registry.error import SchemaRegistryError

T = TypeVar("T")
_NOT_FOUND, _CONFLICT = 404, 409
_ANSWER_SECONDS = 10
_REFUSED = frozenset({400, 422})


class _Explained:
    """Methods of a client that raise SerdeError for what the registry refuses.

    They raise SerdeUnavailableError if it does not answer as a registry does.
    """

    url: str

    def get_schema(self, schema_id: int, *arguments: Any, **options: Any) -> Schema:
        """Return the schema of an id."""
        return self._ask(
            f"schema {schema_id}",
            lambda: _checked(_client_under(self).get_schema(schema_id, *arguments, **options)),
            "the record was written with another registry or another serde",
        )

    def register_schema_full_response(self, subject_name: str, *arguments: Any, **options: Any) -> RegisteredSchema:
        """Register a schema under a subject, or find it there; return it with its id."""
        return self._ask(
            f"the schema under subject {subject_name!r}",
            lambda: _checked_id(_client_under(self).register_schema_full_response(subject_name, *arguments, **options)),
            "register it first",
        )

    def lookup_schema(self, subject_name: str, *arguments: Any, **options: Any) -> RegisteredSchema:
        """Return a schema under a subject with its id."""
        return self._ask(
            f"the schema under subject {subject_name!r}",
            lambda: _checked_id(_client_under(self).lookup_schema(subject_name, *arguments, **options)),
            "register it first, or let the serde do so (register=True)",
        )

    def get_latest_version(self, subject_name: str, *arguments: Any, **options: Any) -> RegisteredSchema:
        """Return the newest schema under a subject."""
        return self._ask(
            f"subject {subject_name!r}",
            lambda: _checked_id(_client_under(self).get_latest_version(subject_name, *arguments, **options)),
            "register a schema under it, or give the serde one (a file or text)",
        )

    def latest(self, subject_name: str) -> RegisteredSchema | None:
        """Return the newest schema under a subject; None if there is none."""
        try:
            return self.get_latest_version(subject_name)
        except SerdeError as error:
            if isinstance(error.__cause__, SchemaRegistryError) and error.__cause__.http_status_code == _NOT_FOUND:
                return None
            raise

    def _ask(self, what: str, call: Callable[[], T], if_missing: str) -> T:
        try:
            return call()
        except SchemaRegistryError as error:
            said = f"schema registry {self.url}, {what}: {error.error_message}"
            if error.http_status_code == _NOT_FOUND:
                raise SerdeError(f"{said}: {if_missing}") from error
            if error.http_status_code == _CONFLICT:
                raise SerdeError(
                    f"{said}: it does not fit the versions that are there. Give new fields a default, keep the types "
                    "of the others, or choose another subject"
                ) from error
            if error.http_status_code in _REFUSED:
                raise SerdeError(said) from error
            raise SerdeUnavailableError(
                f"{said} (HTTP status {error.http_status_code}): check its address and what the user may do "
                "(basic.auth.user.info)"
            ) from error
        except Exception as error:
            raise SerdeUnavailableError(
                f"schema registry {self.url}, {what}: {type(error).__name__}: {error}: start the registry, or give its "
                "address (registry=..., the setting schema_registry, or the environment variable SCHEMA_REGISTRY_URL)"
            ) from error


def _client_under(client: _Explained) -> Any:
    return super(_Explained, client)


class RegistryClient(_Explained, SchemaRegistryClient):
    """Confluent's client."""

    def __init__(self, settings: dict[str, Any]) -> None:
        # Confluent's client waits without end for an address that accepts connections and never answers.
        super().__init__({"timeout": _ANSWER_SECONDS, **_without_user_in_address(settings)})
        self.url = ",".join(self._rest_client.base_urls)


def _without_user_in_address(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings whose address has no user: the HTTP client logs the address of each request, and errors name it.

    As in Confluent's client, the user of the first of several addresses is that of all.
    """
    addresses = [urlsplit(each.strip()) for each in str(settings.get("url")).split(",")]
    bare = ",".join(each._replace(netloc=each.netloc.rpartition("@")[2]).geturl() for each in addresses)
    user = addresses[0]
    if user.username is None:
        return {**settings, "url": bare}
    info = f"{unquote(user.username)}:{unquote(user.password or '')}"
    if settings.get("basic.auth.user.info", info) != info:
        raise ConfigError(
            "setting 'schema_registry': its address has a user, and basic.auth.user.info names another one: give one"
        )
    return {**settings, "url": bare, "basic.auth.user.info": info}


class MockRegistryClient(_Explained, MockSchemaRegistryClient):
    """Confluent's client of a registry in this process, for tests (`mock://NAME`)."""

    def __init__(self, settings: dict[str, Any]) -> None:
        super().__init__(settings)
        self.url = str(settings.get("url"))


def client_settings(registry: str | Mapping[str, Any] | None, user_info: str | None = None) -> dict[str, Any] | None:
    """Return the client's settings for a registry: its address, with a user if given, or settings as they are."""
    if not isinstance(registry, str):
        return None if registry is None else dict(registry)
    return {"url": registry} if user_info is None else {"url": registry, "basic.auth.user.info": user_info}


def of_the_environment() -> dict[str, Any] | None:
    """Return the client's settings for the registry that the environment names, if it names one."""
    return client_settings(
        os.environ.get("SCHEMA_REGISTRY_URL"), os.environ.get("SCHEMA_REGISTRY_BASIC_AUTH_USER_INFO")
    )


def client_of(settings: Mapping[str, Any]) -> RegistryClient | MockRegistryClient:
    """Return the client of this process for these settings: all serdes have one cache of schemas."""
    return _client(os.getpid(), tuple(sorted(settings.items())))


@cache
def _client(process: int, settings: tuple[tuple[str, Any], ...]) -> RegistryClient | MockRegistryClient:
    made = dict(settings)
    return MockRegistryClient(made) if url_scheme(str(made.get("url"))) == "mock" else RegistryClient(made)


def _checked(found: Schema) -> Schema:
    if not isinstance(found, Schema) or not isinstance(found.schema_str, str):
        raise ValueError(f"expected a schema, found {found!r}")
    return found


def _checked_id(found: RegisteredSchema) -> RegisteredSchema:
    if not isinstance(getattr(found, "schema_id", None), int):
        raise ValueError(f"expected a schema with its id, found {found!r}")
    return found
