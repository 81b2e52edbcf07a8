"""Settings: checked at once, and never shown with their secrets."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from penstock import Application, ConfigError, Secret, Settings, Topology

CANARY = "canary-7f3a"


@pytest.mark.parametrize(
    "given",
    [
        {"processing_guarantee": "at_most_once"},
        {"processing_guarantee": None},
        {"task_timeout": "soon"},
        {"task_timeout": 300},
        {"replication_factor": 0},
        {"replication_factor": "3"},
        {"replication_factor": True},
        {"offset_out_of_range": "none"},
        {"intermediate_topics": 3},
        {"intermediate_topics": ["retries", ""]},
        {"clients": "security.protocol=SSL"},
        {"clients": {"security.protocol": None}},
        {"clients": {3: "x"}},
    ],
    ids=str,
)
def test_a_value_out_of_range_is_refused_by_name(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(given))):
        Settings(**given)


def test_kafka_streams_name_of_exactly_once_means_the_same() -> None:
    assert Settings(processing_guarantee="exactly_once_v2") == Settings(processing_guarantee="exactly_once")


def test_names_of_topics_are_a_list_or_text() -> None:
    for given in ("retries,again", " retries , again,", ["retries", "again"], ("retries", "again")):
        assert Settings(intermediate_topics=given).intermediate_topics == ("retries", "again")
    assert Settings(intermediate_topics="").intermediate_topics == ()


HOLDING = [
    {"clients": {"sasl.password": CANARY}},
    {"clients": {"consumer.ssl.key.pem": CANARY}},
    {"clients": {"sasl.jaas.config": CANARY}},
    {"clients": {"sasl_oauthbearer_client_secret": CANARY}},
    {"clients": {"basic.auth.user.info": CANARY}},
    {"clients": {"my.thing": Secret(CANARY)}},
    {"clients": {"my.thing": f"-----BEGIN PRIVATE KEY-----{CANARY}"}},
    {"clients": {"proxy": f"http://me:{CANARY}@proxy"}},
    {"clients": {"my.config": f"a=b password={CANARY}"}},
    {"user": {"api_key": CANARY}},
    {"user": {"service": {"headers": [{"token": CANARY}]}}},
    {"user": {"thing": Secret(CANARY)}},
    {"user": {"headers": {"Authorization": f"Bearer {CANARY}", "Cookie": CANARY}}},
    {"user": {"headers": [["X-Thing", f"Bearer {CANARY}"], ["Proxy-Authorization", CANARY], ("x-api-key", CANARY)]}},
    {"user": {"headers": [{"name": "X-Thing", "value": f"basic {CANARY}"}, f"Authorization: Digest {CANARY}"]}},
    {"changelog": f"directory:s3://key:{CANARY}@bucket/path"},
    {"changelog": f"directory:s3://bucket/path?access_key=x&secret_key={CANARY}"},
]


@pytest.mark.parametrize("given", HOLDING, ids=lambda given: str(given).replace(CANARY, ""))
def test_secrets_are_not_shown(given: dict[str, Any]) -> None:
    settings = Settings(**given)
    topology = Topology().add_source("in", "in").add_sink("out", "out", "in")
    application = Application("app", topology, **given)
    again = application.with_settings(commit_interval="1s")
    copied = pickle.loads(pickle.dumps(again.settings))
    for shown in (settings, application, again, again.settings, copied, settings.clients):
        assert CANARY not in f"{shown} {shown!r}"
    assert copied == again.settings


def test_what_is_no_secret_is_shown() -> None:
    shown = repr(Settings(clients={"security.protocol": "SASL_SSL", "sasl.username": "me"}, log="local:here"))
    for each in ("SASL_SSL", "'me'", "local:here"):
        assert each in shown
    user = {"pairs": [["limit", 3], ["a", "b"]], "text": "the bearer of news", "basic": "a basic plan for all"}
    assert Settings(user=user).shown("user") == user


def test_the_clients_values_are_text_and_a_secret_is_revealed() -> None:
    clients = Settings(clients={"a": 1, "b": True, "c": Secret("x"), "d": 0.5}).clients
    assert dict(clients) == {"a": "1", "b": "true", "c": "x", "d": "0.5"}


@pytest.mark.parametrize("given", [{"clients": {"sasl.password": [CANARY]}}, {"clients": CANARY}, {"user": CANARY}])
def test_a_refusal_does_not_show_what_may_be_a_secret(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        Settings(**given)
    assert CANARY not in str(caught.value)
