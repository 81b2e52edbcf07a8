"""`penstock serve`."""

from __future__ import annotations

import re
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock import Application, run
from penstock.client import Client, Entry, QueryError
from penstock.queries import Queries

from ..console.browsing import Reader
from ..processes import python
from ..spark import apps
from ..spark.surroundings import Surroundings
from .console import Console

PROGRAM = """
from penstock import Application
from tests.spark import apps

application = Application("app", apps.count(), engine="embedded", data_dir="data", log="local:log")
"""


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An application that has counted three keys."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "counting.py").write_text(PROGRAM)
    with Surroundings(tmp_path / "data") as surroundings:
        surroundings.create(**{"in": 2, "out": 2})
        surroundings.put("in", [("a", "v", 1), ("b", "v", 2), ("a", "v", 3)])
        run(surroundings.application("app", apps.count(), engine="embedded"))
    return f"{tmp_path}/counting.py:application"


@pytest.mark.parametrize("local", [True, False])
def test_it_serves_until_it_is_stopped(target: str, tmp_path: Path, local: bool) -> None:
    application = Application("app", apps.count(), data_dir=str(tmp_path / "data"), log="local:log")
    # As the server of a run has it, which may be on the same machine.
    with Queries.from_changelog(application) as beside:
        assert beside.store("counts", wait="30s").get("b") == 1
        serve(target, tmp_path, local=local)


def serve(target: str, tmp_path: Path, *, local: bool) -> None:
    arguments = ["serve", target, "--listen", "127.0.0.1:0", "--data-dir", str(tmp_path / "data")]
    with python("penstock.plugins.operate.cli", *arguments, *(["--local", "--console"] if local else [])) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        console = r", with its console at \1/console/" if local else ""
        found = re.search(rf"app answers at (http://127\.0\.0\.1:\d+){console}$", line)
        assert found is not None, line + process.stderr.read()
        with Client(found[1]) as client:
            assert client.store("counts", wait="30s").get("a") == Entry("a", 2)
        page = Reader(found[1]).get("store?name=counts&key=a")
        assert (page.status, "a 2" in page.text) == ((200, True) if local else (404, False))
        process.send_signal(signal.SIGTERM)
        _, rest = process.communicate(timeout=240)
        assert process.returncode == 0 and rest == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--listen", "0.0.0.0:8080"], r"--listen 0.0.0.0:8080: other machines reach it, and there is no token"),
        (["--listen", "here"], "expected HOST:PORT"),
        (["--store", "count"], "no store 'count'.*did you mean 'counts'"),
        (["--tls-cert", "counting.py"], "--tls-cert and --tls-key: give both or none"),
        (["--local", "--directory", "x"], "--directory: with --local there are no replicas"),
        (["--token-file", "token"], "--token-file token: expected a token of 16 or more"),
        (["--actions-token-file", "token"], "--actions-token-file token: expected a token of 16 or more"),
        (["--tls-cert", "counting.py", "--tls-key", "counting.py"], "the certificate or its key cannot be used"),
    ],
)
def test_what_it_refuses(target: str, console: Console, arguments: list[str], message: str) -> None:
    Path("token").write_text("short")
    found = console("serve", target, *arguments, code=2).output
    assert re.search(message, re.sub(r"\s+", " ", found)), found


def test_a_port_that_is_taken_is_named(target: str, console: Console) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        found = console("serve", target, "--local", "--listen", f"127.0.0.1:{port}", code=2).output
    assert f"--listen 127.0.0.1:{port} cannot be opened" in re.sub(r"\s+", " ", found)


def test_settings_hide_here_what_they_hide_beside_a_run(target: str, tmp_path: Path) -> None:
    token = "a-token-of-the-test"
    (tmp_path / "token").write_text(token)
    (tmp_path / "masked.toml").write_text('queries_masked = "counts"\nqueries_token = { file = "token" }\n')
    (tmp_path / "excluded.toml").write_text('queries_excluded = "counts"\n')
    arguments = ["serve", target, "--listen", "127.0.0.1:0", "--data-dir", str(tmp_path / "data")]

    @contextmanager
    def serving(config: str, *more: str) -> Iterator[str]:
        with python("penstock.plugins.operate.cli", *arguments, *more, "--config", str(tmp_path / config)) as process:
            assert process.stderr is not None
            line = process.stderr.readline()
            found = re.search(r"http://127\.0\.0\.1:\d+", line)
            assert found is not None, line + process.stderr.read()
            yield found[0]
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=240)

    with serving("masked.toml", "--local") as url:
        with Client(url, token=token) as client:
            assert client.store("counts", wait="30s").get("a") == Entry("a", "***")
        with Client(url) as client, pytest.raises(QueryError, match="send the token"):
            client.stores()
    with serving("excluded.toml") as url, Client(url) as client:
        assert client.stores() == {}
