"""The broker that the tests use: it keeps what it was given, and it goes when it should."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from penstock.errors import RuntimeUnavailableError
from penstock.plugins.testing import kafka_broker as broker_module
from penstock.plugins.testing.kafka.jars import JARS_VARIABLE, STARTS_FAST, broker_jars
from penstock.plugins.testing.kafka.process import brokers_known_at, free_ports, is_free
from penstock.plugins.testing.kafka_broker import KafkaBroker
from tests.kafka.clients import QUIET, make_topic, produce, read_all
from tests.kafka.names import fresh_name
from tests.processes import Child
from tests.waiting import wait_until

pytestmark = [pytest.mark.broker, pytest.mark.xdist_group("test_broker")]
CREDENTIALS = ("anna", 'a "quoted" \\ one')


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """A broker that a test may kill."""
    directory = tmp_path_factory.mktemp("own")
    listing = (*STARTS_FAST, f"-Xlog:class+load:file={directory / 'classes-%p'}")
    with KafkaBroker(directory / "kafka", credentials=CREDENTIALS, jvm_options=listing) as broker:
        yield broker


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_topics_are_made_by_request_only(own: KafkaBroker) -> None:
    topic = fresh_name("made")
    asking = AdminClient({"bootstrap.servers": own.bootstrap, "allow.auto.create.topics": True, **QUIET})
    error = asking.list_topics(topic, timeout=30).topics[topic].error
    assert error is not None and error.name() == "UNKNOWN_TOPIC_OR_PART"
    assert topic not in asking.list_topics(timeout=30).topics
    make_topic(own.bootstrap, topic)
    assert produce(own.bootstrap, topic, b"1", b"2") == []
    assert read_all(own.bootstrap, topic) == [b"1", b"2"]


def test_its_classes_come_from_an_archive(own: KafkaBroker) -> None:
    classes = own.directory.with_name(f"classes-{own.pid}").read_text().splitlines()
    [line] = [each for each in classes if " kafka.server.KafkaRaftServer source: " in each]
    assert line.endswith("shared objects file (top)")


def test_without_a_cache_it_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(JARS_VARIABLE, str(broker_jars()))
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(RuntimeUnavailableError, match="(?s)could not be written.*XDG_CACHE_HOME"):
        KafkaBroker(tmp_path / "kafka").start()


def test_data_and_address_survive_a_kill(own: KafkaBroker) -> None:
    topic = fresh_name("kept")
    make_topic(own.bootstrap, topic)
    assert produce(own.bootstrap, topic, b"before") == []
    bootstrap, pid = own.bootstrap, own.pid
    own.kill()
    assert not own.is_running and pid is not None and not is_alive(pid)
    own.start()
    assert own.is_running and own.bootstrap == bootstrap and own.pid != pid
    assert produce(own.bootstrap, topic, b"after") == []
    assert read_all(own.bootstrap, topic) == [b"before", b"after"]


def test_a_frozen_broker_does_not_answer(own: KafkaBroker) -> None:
    port = int(own.bootstrap.partition(":")[2])
    own.freeze()
    assert brokers_known_at(port, 0.2) == set()
    assert own.is_running
    own.resume()
    wait_until(lambda: brokers_known_at(port) == {1})


def test_credentials(own: KafkaBroker) -> None:
    user, password = CREDENTIALS
    plain = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": user}
    settings: dict[str, Any] = {"bootstrap.servers": own.sasl_bootstrap, **plain, **QUIET}
    assert AdminClient({**settings, "sasl.password": password}).list_topics(timeout=30).brokers
    errors: list[str] = []
    settings["error_cb"] = lambda error: errors.append(error.name())
    wrong = AdminClient({**settings, "sasl.password": "other"})
    with pytest.raises(KafkaException):
        wrong.list_topics(timeout=2)
    wrong.poll(0)
    assert "_AUTHENTICATION" in errors


def test_a_directory_is_gone_on_with_and_used_once(own: KafkaBroker) -> None:
    topic = fresh_name("kept")
    make_topic(own.bootstrap, topic)
    assert produce(own.bootstrap, topic, b"1") == []
    other = KafkaBroker(own.directory, credentials=CREDENTIALS)
    with pytest.raises(RuntimeUnavailableError, match="another broker runs there; stop that one"):
        other.start()
    bootstrap, pid = own.bootstrap, own.pid
    own.stop()
    assert not own.is_running and pid is not None and not is_alive(pid)
    try:
        with KafkaBroker(own.directory, credentials=CREDENTIALS) as later:
            assert later.bootstrap == bootstrap
            assert read_all(later.bootstrap, topic) == [b"1"]
    finally:
        own.start()


def test_it_starts_elsewhere_when_somebody_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """And then it stays where it is."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        choices = [[taken.getsockname()[1], *free_ports(1)], free_ports(2)]
        monkeypatch.setattr(broker_module, "free_ports", lambda number: choices.pop(0))
        with KafkaBroker() as broker:
            assert choices == []
            port = int(broker.bootstrap.partition(":")[2])
            assert port != taken.getsockname()[1]
            broker.kill()
            with socket.create_server(("127.0.0.1", port)):
                assert not is_free(port)
                with pytest.raises(RuntimeUnavailableError, match=f"another program took its port {port} of 127.0.0.1"):
                    broker.start()
        assert not broker.directory.exists()


def test_an_error_has_the_end_of_the_log() -> None:
    broker = KafkaBroker(options={"num.io.threads": "few"})
    with pytest.raises(RuntimeUnavailableError, match="(?s)ended at its start.*few.*num.io.threads"), broker:
        pass
    assert not broker.directory.exists()


def test_it_dies_with_its_parent() -> None:
    program = """if True:
        from penstock.plugins.testing.kafka_broker import KafkaBroker
        broker = KafkaBroker()
        broker.start()
        print(broker.pid, broker.directory, flush=True)
        input()
    """
    with Child("-c", program) as parent:
        pid, directory = parent.line().split()
        assert is_alive(int(pid)) and Path(directory).exists()
    wait_until(lambda: not is_alive(int(pid)) and not Path(directory).exists())


def test_the_command_runs_one_until_it_is_told_to_end(tmp_path: Path) -> None:
    command = ("-m", "penstock.testing.kafka_broker", "--directory", tmp_path / "kafka")
    with Child(*command, "--option", "num.partitions=5") as process:
        word, bootstrap = process.line().split()
        assert word == "ready:"
        make_topic(bootstrap, "t", partitions=-1)
        admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
        assert len(admin.list_topics("t", timeout=30).topics["t"].partitions) == 5
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert brokers_known_at(int(bootstrap.partition(":")[2])) == set()
    assert (tmp_path / "kafka" / "data").is_dir()
