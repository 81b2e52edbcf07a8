"""Settings from a TOML file, the environment and NAME=VALUE texts."""

from __future__ import annotations

import traceback
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock import Application, ConfigError, DeadLetter, PluginError, Settings, Topology, skip
from penstock.plugins.logs.kafka.client_names import KNOWN
from penstock.plugins.operate.settings.kafka_streams import KAFKA_STREAMS, WITHOUT_COUNTERPART
from penstock.plugins.operate.settings.settings_in_force import settings_in_force
from penstock.program.extractors import wall_clock_timestamp
from penstock.settings.names import EXTRA, flat, translate
from penstock.settings.secret import SettingsByName, hide, hide_in_places
from penstock.settings.sources import environment_layer, file_layer, layers, options_layer

CANARY = "canary-51ab"
TOPOLOGY = Topology().add_source("in", "in")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def toml(text: str, path: str = "my.toml") -> Any:
    Path(path).write_text(text)
    return file_layer(path)


# -- the file


@pytest.mark.parametrize(
    "text",
    [
        'log = "kafka:a:1"\nconsumer.fetch.min.bytes = 5\nsecurity.protocol = "SSL"\nuser.limit = 3\n',
        '"bootstrap.servers" = "a:1"\n[consumer]\nfetch.min.bytes = "5"\n[security]\nprotocol = "SSL"\n[user]\nlimit ' '= 3\n',
        'bootstrap.servers = ["a:1"]\n[clients]\nconsumer.fetch.min.bytes = 5\nsecurity = {protocol = ' '"SSL"}\n[user]\nlimit = 3',
        '[other]\nx = 1\n[penstock]\nlog = "kafka:a:1"\n[penstock.consumer.fetch]\nmin.bytes = ' '5\n[penstock.security]\nprotocol="SSL"\n[penstock.user]\nlimit=3',
    ],
)  # fmt: skip
def test_tables_stand_for_dots(text: str) -> None:
    settings = Settings.of(toml(text))
    assert settings.log == "kafka:a:1"
    assert settings.clients == {"consumer.fetch.min.bytes": "5", "security.protocol": "SSL"}
    assert settings.user == {"limit": 3}


def test_values_get_the_type_of_their_setting() -> None:
    found = toml(
        'processing_handler = "skip"\ndefault.timestamp.extractor = "wall_clock_timestamp"\nmax_task_idle = "none"\n'
        'parallelism = "3"\ncommit_bytes = 1_000\ncommit.interval.ms = 7\nuser = {a = {b = [1], file = "x"}, c = "3"}\n'
        'application.id = "shop"\nenable.metrics.push = false\n'
    )
    assert found.values == {
        "processing_handler": skip,
        "timestamp_extractor": wall_clock_timestamp,
        "max_task_idle": None,
        "parallelism": 3,
        "commit_bytes": 1000,
        "commit_interval": "7ms",
        ("user", "a"): {"b": [1], "file": "x"},
        ("user", "c"): "3",
        "application_id": "shop",
        ("clients", "enable.metrics.push"): False,
    }


def test_each_value_says_its_line() -> None:
    found = toml(
        '# log = 1\nlog = "local:x"\n\n[consumer]\n"fetch.min.bytes" = 5\n[sasl]\n  mechanism="PLAIN"\nlogin = {}\n'
    )
    assert found.origins == {
        "log": "my.toml, line 2",
        ("clients", "consumer.fetch.min.bytes"): "my.toml, line 5",
        ("clients", "sasl.mechanism"): "my.toml, line 7",
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("log = ", "'my.toml' is no valid TOML: .* document"),
        (
            '\ncomit_interval = "5s"',
            "my.toml, line 2: unknown setting 'comit_interval'; did you mean 'commit_interval'",
        ),
        ("[consumer]\nfetch.min.byte = 1", "my.toml, line 2: unknown setting 'consumer.fetch.min.byte'; did you mean"),
        ("max.warmup.replicas = 1", "my.toml, line 1: 'max.warmup.replicas' of Kafka Streams has no counterpart"),
        ("commit_interval = 5", "my.toml, line 1: setting 'commit_interval': expected .*bare number does not say"),
        (
            "parallelism = 'many'",
            "my.toml, line 1: setting 'parallelism': expected a whole number above 0, found 'many'",
        ),
        ("store_backend = 'lmbd'", "my.toml, line 1: setting 'store_backend': no store backend named 'lmbd'"),
        ("processing_handler = 'ignore'", "my.toml, line 1: .*expected one of fail, skip, or MODULE:ATTR"),
        ("sasl.password = {file = 'gone'}", "my.toml, line 1: the file 'gone' cannot be read: No such file"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(text: str, message: str) -> None:
    with pytest.raises((ConfigError, PluginError), match=message):
        Application("app", TOPOLOGY).under(toml(text))


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match=r"'gone\.toml': No such file"):
        file_layer("gone.toml")
    with pytest.raises(ConfigError, match=r"'gone\.toml'"):
        layers("gone.toml", {})
    with pytest.raises(ConfigError, match=r"'gone\.toml'"):
        layers(None, {"PENSTOCK_CONFIG": "gone.toml"})


# -- the environment


@pytest.mark.parametrize(
    ("variable", "value", "key", "expected"),
    [
        ("PENSTOCK_LOG", "local:x", "log", "local:x"),
        ("PENSTOCK_BOOTSTRAP_SERVERS", "a:1", "log", "kafka:a:1"),
        ("PENSTOCK_PROCESSING_GUARANTEE", "at_least_once", "processing_guarantee", "at_least_once"),
        ("PENSTOCK_COMMIT_INTERVAL", "5s", "commit_interval", "5s"),
        ("PENSTOCK_COMMIT_INTERVAL_MS", "5", "commit_interval", "5ms"),
        ("PENSTOCK_MAX_RECORDS_PER_BATCH", "none", "max_records_per_batch", None),
        ("PENSTOCK_PROCESSING_EXCEPTION_HANDLER", "skip", "processing_handler", skip),
        ("PENSTOCK_APPLICATION_ID", "shop", "application_id", "shop"),
        ("PENSTOCK_CONSUMER_FETCH_MIN_BYTES", "5", ("clients", "consumer.fetch.min.bytes"), "5"),
        ("PENSTOCK_MAIN_CONSUMER_FETCH_MIN_BYTES", "5", ("clients", "consumer.fetch.min.bytes"), "5"),
        ("PENSTOCK_SASL_PASSWORD", "none", ("clients", "sasl.password"), "none"),
        ("PENSTOCK_SASL_OAUTHBEARER_ASSERTION_FILE", "x", ("clients", "sasl.oauthbearer.assertion.file"), "x"),
        ("PENSTOCK_CLIENTS_DEBUG", "broker", ("clients", "debug"), "broker"),
        ("PENSTOCK_CLIENTS_QUITE_NEW", "5", ("clients", "quite.new"), "5"),
        ("PENSTOCK_CLIENTS_PRODUCER_QUITE_NEW", "5", ("clients", "producer.quite.new"), "5"),
        ("PENSTOCK_TOPIC_CONFIG_SEGMENT_BYTES", "5", ("topic_config", "segment.bytes"), "5"),
        ("PENSTOCK_USER_MOST_ORDERS", "5", ("user", "most_orders"), 5),
    ],
)
def test_a_variable_sets_what_it_names(variable: str, value: str, key: Any, expected: Any) -> None:
    found = environment_layer({variable: value, "HOME": "/"})
    assert found.values == {key: expected}
    assert found.origins == {key: variable}


@pytest.mark.parametrize(
    "variable",
    [
        "PENSTOCK_COMPILED", "PENSTOCK_DEBUG", "PENSTOCK_CONFIG", "PENSTOCK_KAFKA_JARS", "PENSTOCK_SERVICE_HOST", "PENSTOCK_SERVICE_PORT",
        "PENSTOCK_SERVICE_PORT_HTTP", "PENSTOCK_PORT", "PENSTOCK_PORT_80_TCP", "PENSTOCK_PORT_80_TCP_ADDR", "XPENSTOCK_LOG",
        "PENSTOCK_UI_SERVICE_HOST", "_PENSTOCK_COMPLETE",
    ],
)  # fmt: skip
def test_what_is_no_setting_is_left_alone(variable: str) -> None:
    assert not environment_layer({variable: "x"}).values
    assert not environment_layer({"PENSTOCK_LOG": ""}).values


def test_an_unknown_variable_is_said() -> None:
    with pytest.raises(ConfigError, match="PENSTOCK_COMIT_INTERVAL: unknown setting 'comit_interval'; did you mean"):
        environment_layer({"PENSTOCK_COMIT_INTERVAL": "5s"})
    with pytest.raises(ConfigError, match="PENSTOCK_COMMIT_INTERVAL: setting 'commit_interval': expected"):
        Settings.of(environment_layer({"PENSTOCK_COMMIT_INTERVAL": "5"}))


NAMES = sorted(
    {*Settings.names(), *EXTRA, *KAFKA_STREAMS, *KNOWN} - {"user", "clients", "debug"} - set(WITHOUT_COUNTERPART)
)


@given(st.sampled_from(NAMES), st.sampled_from(["", "consumer.", "producer.", "admin.", "main.consumer."]))
def test_a_variable_says_the_same_as_the_name(name: str, prefix: str) -> None:
    """Every name that the code takes can be spelled as a variable, and comes back as the same setting."""
    name = prefix + name if name in KNOWN else name
    value = "12"
    if name.endswith(("_handler", ".handler", "extractor")):
        value = "skip" if "handler" in name else "wall_clock_timestamp"
    if "uncaught" in name:
        value = "replace_task"
    if "wrapper" in name or name.endswith("listener"):
        value = "os:getcwd"
    expected = translate(name, value, Settings.names())
    assert expected is not None
    found = environment_layer({f"PENSTOCK_{flat(name).upper()}": value}).values
    assert set(found) == {expected[0]}


def test_names_are_spelled_differently_as_variables() -> None:
    """So that no variable means two things: the same letters, the same setting."""
    meanings: dict[str, Any] = {}
    for name in NAMES:
        found = translate(name, "12", Settings.names())
        assert found is not None
        assert meanings.setdefault(flat(name), found[0]) == found[0], name


# -- secrets in files


def test_a_secret_may_be_in_a_file(here: Path) -> None:
    (here / "conf").mkdir()
    (here / "conf" / "password").write_text(f"{CANARY}\n")
    (here / "other").write_text(f"{CANARY}-2")
    found = toml('sasl.password = {file = "password"}\nsasl.username = {file = "../other"}\n', "conf/app.toml")
    settings = Settings.of(found)
    assert settings.clients == {"sasl.password": CANARY, "sasl.username": f"{CANARY}-2"}
    by_variable = environment_layer({"PENSTOCK_SASL_USERNAME_FILE": "other", "PENSTOCK_LOG_FILE": "other"})
    assert dict(
        Settings.make({"clients": {"sasl.username": by_variable.values["clients", "sasl.username"]}}).clients
    ) == {"sasl.username": f"{CANARY}-2"}
    for shown in (found, settings, by_variable, Application("app", TOPOLOGY).under(found)):
        assert CANARY not in repr(shown)


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("LOG", f"{CANARY}:here"),
        ("CHANGELOG", f"{CANARY}:s3://x"),
        ("VALUE_SERDE", f"{CANARY}:int"),
        ("STORE_BACKEND", CANARY),
        ("PROCESSING_HANDLER", f"os:{CANARY}"),
        ("TIMESTAMP_EXTRACTOR", f"{CANARY}:extract"),
        ("PROCESSOR_WRAPPER", f"http://{CANARY}"),
        ("COMMIT_INTERVAL", f"5s {CANARY}"),
        ("MAX_RECORDS_PER_BATCH", CANARY),
    ],
)
def test_no_error_shows_a_part_of_what_a_file_has(here: Path, variable: str, text: str) -> None:
    """Such as another file than was meant, with a password."""
    (here / "file").write_text(text)
    with pytest.raises((ConfigError, PluginError)) as caught:
        Application("app", TOPOLOGY).under(environment_layer({f"PENSTOCK_{variable}_FILE": str(here / "file")}))
    assert CANARY not in "".join(traceback.format_exception(caught.value))
    assert str(caught.value).startswith(f"PENSTOCK_{variable}_FILE: ") and "********" in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "sasl.oauthbearer.assertion.private.key.file = 'key.pem'",
        "[penstock.clients]\nsasl.oauthbearer.assertion.private.key.file = 'key.pem'",
        "[penstock.consumer.sasl.oauthbearer]\nassertion.private.key.file = 'key.pem'",
    ],
)
def test_a_setting_whose_name_ends_in_file_is_no_secret_in_a_file(here: Path, text: str) -> None:
    """Its file was read, and what it has was the value of a setting without .file, which no client knows."""
    (here / "key.pem").write_text(CANARY)
    assert [*Settings.of(toml(text)).clients.values()] == ["key.pem"]
    (name,) = Settings.of(toml(text)).clients
    assert name.removeprefix("consumer.") == "sasl.oauthbearer.assertion.private.key.file"


@pytest.mark.parametrize(
    ("variable", "text", "setting", "value"),
    [
        ("PENSTOCK_PROCESSES_FILE", "2", "processes", 2),
        ("PENSTOCK_COMMIT_INTERVAL_FILE", "5s", "commit_interval", "5s"),
        ("PENSTOCK_COMMIT_INTERVAL_MS_FILE", "5", "commit_interval", "5ms"),
        ("PENSTOCK_PROCESSING_HANDLER_FILE", "skip", "processing_handler", skip),
        ("PENSTOCK_BOOTSTRAP_SERVERS_FILE", "a:1", "log", "kafka:a:1"),
        ("PENSTOCK_CLIENTS_SASL_PASSWORD_FILE", "x", "clients", {"sasl.password": "x"}),
        ("PENSTOCK_CLIENTS_QUITE_NEW_FILE", "x", "clients", {"quite.new": "x"}),
        ("PENSTOCK_TOPIC_CONFIG_SEGMENT_BYTES_FILE", "5", "topic_config", {"segment.bytes": "5"}),
        # Those name no file.
        ("PENSTOCK_CLIENTS_SASL_OAUTHBEARER_ASSERTION_FILE", "x", "clients", {"sasl.oauthbearer.assertion.file": "it"}),
        ("PENSTOCK_USER_INPUT_FILE", "x", "user", {"input_file": "it"}),
    ],
)
def test_any_value_may_be_in_a_file(variable: str, text: str, setting: str, value: Any, here: Path) -> None:
    (here / "it").write_text(f"{text}\n")
    application = Application("app", TOPOLOGY).under(layers(environment={variable: "it"}))
    assert application.settings[setting] == value


def test_the_id_may_be_in_a_file(here: Path) -> None:
    (here / "it").write_text("shop")
    assert Application("app", TOPOLOGY).under(layers(environment={"PENSTOCK_APPLICATION_ID_FILE": "it"})).id == "shop"


@pytest.mark.parametrize(
    "name", ["STATE_DIR", "METRICS_HOST", "CHANGELOG", "COMMIT_INTERVAL", "ENGINE", "PROCESSES", "COMMIT_INTERVAL_MS",
             "PROCESSING_GUARANTEE", "PROCESSING_HANDLER", "DEFAULT_KEY_SERDE", "TOPIC_CONFIG", "CLIENTS"],
)  # fmt: skip
def test_what_comes_from_a_file_of_its_own_is_shown_nowhere(name: str, here: Path) -> None:
    """Neither a value that fits, nor in the error one that does not."""
    (here / "it").write_text(f"directory:{CANARY}" if name == "CHANGELOG" else CANARY)
    try:
        application = Application("app", TOPOLOGY).under(layers(environment={f"PENSTOCK_{name}_FILE": "it"}))
    except (ConfigError, PluginError) as error:
        shown = "".join(traceback.format_exception(error))
        assert name not in ("STATE_DIR", "METRICS_HOST", "CHANGELOG")
    else:
        settings = replace(application.with_settings(processes=1).settings, task_timeout="1s")
        shown = f"{application!r} {settings!r} {settings.shown(name.lower())} {settings_in_force(application)}"
        shown += repr(SettingsByName(settings.by_name, settings.marked))
    assert CANARY not in shown


@dataclass
class Service:
    url: str = "h"
    password: str = CANARY

    def __call__(self, error: object) -> Any:
        return skip


class Account(NamedTuple):
    name: str = "me"
    password: str = CANARY


class Shown:
    def __repr__(self) -> str:
        return f"Shown(password={CANARY!r})"

    def __call__(self, error: object) -> Any:
        return skip


def by_key(error: object, key: str) -> Any:
    return skip


HANDLERS = {
    f"{by_key.__module__}:by_key(********)": partial(by_key, key=CANARY), "Service(********)": Service(),
    "Shown(********)": Shown(), "DeadLetter(topic='dead')": DeadLetter("dead"),
}  # fmt: skip


@pytest.mark.parametrize("shown", HANDLERS)
def test_an_object_among_settings_does_not_show_its_secret(shown: str) -> None:
    user = {"account": Account(), "client": partial(by_key, key=CANARY), "text": f"password={CANARY}".encode()}
    application = Application("app", TOPOLOGY, processing_handler=HANDLERS[shown], user=user)
    rows = {name: value for name, value, _ in settings_in_force(application)}
    assert rows["processing_handler"] == shown
    assert rows["user.account"] == {"name": "me", "password": "********"}
    assert CANARY not in f"{rows} {application!r} {SettingsByName(application.settings.by_name)!r}"


AROUND = st.text("ab/+=@:,;&?#%!.-_~", max_size=5)


@given(
    st.sampled_from(["directory:s3://key:{}@bucket/p?region=x", "s3://key:{}@bucket/a@b", "kafka:me:{}@h:1,h2:2"]),
    st.builds(f"{{}}{CANARY}{{}}".format, AROUND, AROUND),
)
@example("s3://key:{}@bucket/a@b", f"/{CANARY}@/")
@example("kafka:me:{}@h:1,h2:2", f"//{CANARY}/")
@example("directory:s3://key:{}@bucket/p?region=x", "a" * 5_000 + CANARY)
def test_a_secret_in_a_place_is_hidden_whatever_it_is_made_of(place: str, secret: str) -> None:
    for shown in (hide_in_places(place.format(secret)), hide("log", place.format(secret))):
        assert CANARY not in shown and shown.startswith(place.partition("key:")[0].partition("me:")[0])


def test_a_long_token_is_hidden() -> None:
    """Only the first 200 characters of a user were looked at, and 400 of a password."""
    for url in ("https://{}@host/x", "https://me:{}@host/x"):
        text = f"no such host: {url.format('a' * 5_000 + CANARY)}"
        assert hide_in_places(text) == "no such host: https://********@host/x"
        assert hide("user", {"place": text}) == {"place": "********"}


@pytest.mark.parametrize("value", [[CANARY], {"x": CANARY}, 51_000])
def test_an_error_does_not_show_a_secret_of_a_wrong_type(value: Any) -> None:
    with pytest.raises(ConfigError, match="expected a token of 16 or more characters, found [*]") as caught:
        Settings.make({"queries_token": value})
    assert CANARY not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("given", [f"sasl.pasword={CANARY}", f"acks.{CANARY}", "user=5", "clients=5", f"={CANARY}"])
def test_an_error_about_a_name_does_not_show_the_value(given: str) -> None:
    with pytest.raises(ConfigError) as caught:
        options_layer([given])
    assert f"={CANARY}" not in str(caught.value)
    with pytest.raises(ConfigError) as caught:
        environment_layer({"PENSTOCK_SASL_PASWORD": CANARY})
    assert CANARY not in str(caught.value)


# -- who wins


@given(st.sets(st.sampled_from(["program", "file", "environment", "option"])))
def test_the_option_wins_over_the_environment_the_file_and_the_program(who: set[str]) -> None:
    Path("penstock.toml").write_text(
        'commit_interval = "2s"\nuser.file = 1\nuser.all = "file"\n' if "file" in who else "# nothing\n"
    )
    variables = {
        "PENSTOCK_COMMIT_INTERVAL_MS": "3",
        "PENSTOCK_USER_ENVIRONMENT": "1",
        "PENSTOCK_USER_ALL": "environment",
    }
    options = ["commit.interval=4s", "user.option=1", "user.all=option"]
    program: dict[str, Any] = {"commit_interval": "1s", "user": {"program": 1, "all": "program"}}
    application = Application("app", TOPOLOGY, **(program if "program" in who else {})).under(
        layers(None, variables if "environment" in who else {}, options if "option" in who else [])
    )
    expected: dict[str | None, tuple[str | None, str | None]] = {
        "program": ("1s", "code"),
        "file": ("2s", "penstock.toml, line 1"),
        "environment": ("3ms", "PENSTOCK_COMMIT_INTERVAL_MS"),
        "option": ("4s", "--set commit.interval"),
        None: (None, None),
    }
    strongest = max(who, key=list(expected).index, default=None)
    origin = application.given.origins.get("commit_interval")
    assert (application.settings.commit_interval, origin) == expected[strongest]
    assert application.settings.user == {**dict.fromkeys(who, 1), **({"all": strongest} if strongest else {})}


TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1)


@given(st.sampled_from(["sasl.password", "consumer.ssl.key.pem", "clients.my.token"]), TEXT)
def test_no_secret_is_shown_whatever_it_is(name: str, value: str) -> None:
    secret = f"<{CANARY}{value}>"
    made: list[Any] = [
        Settings.of(options_layer([f"{name}={secret}"])),
        Settings.make({name: secret}),
        Settings.of(environment_layer({f"PENSTOCK_{flat(name).upper()}": secret})),
        Application("app", TOPOLOGY, {name: secret}),
    ]
    for each in made:
        assert CANARY not in repr(each)
    assert [list(each.clients.values()) for each in made[:3]] == [[secret]] * 3


def test_variables_of_a_service_of_kubernetes_are_no_settings() -> None:
    """It sets some for each Service of a namespace; those of `penstock-metrics` are spelled like a setting."""
    link = {"PENSTOCK_METRICS_PORT": "tcp://10.0.48.109:9464"}
    assert environment_layer(link | {"PENSTOCK_METRICS_SERVICE_HOST": "10.0.48.109"}).values == {}
    own = {"PENSTOCK_METRICS_PORT": "9464", "PENSTOCK_METRICS_SERVICE_HOST": "10.0.48.109"}
    assert environment_layer(own).values == {"metrics_port": 9464}
    with pytest.raises(ConfigError, match="PENSTOCK_METRICS_PORT"):
        environment_layer(link)
