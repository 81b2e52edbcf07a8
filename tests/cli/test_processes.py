"""What only a real process shows: pipes, signals, terminals."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys

import pytest

from penstock.plugins.operate.cli.options import open_log
from penstock.record import OutputBatch, TopicPartition
from penstock.settings.settings import Settings

from ..waiting import wait_until
from .applications import TARGET, counting, run
from .console import Console


def append(console: Console, *values: str) -> None:
    with open_log(Settings(data_dir=str(console.directory / ".penstock"))) as log:
        log.append(OutputBatch("lines", [None] * len(values), [each.encode() for each in values], [0] * len(values)))


def end(console: Console) -> int:
    with open_log(Settings(data_dir=str(console.directory / ".penstock"))) as log:
        return log.end_offsets([TopicPartition("lines", 0)])[TopicPartition("lines", 0)]


@pytest.fixture
def lines(console: Console) -> Console:
    console("topics", "create", "lines")
    return console


@pytest.mark.parametrize(("number", "code", "said"), [(signal.SIGINT, 130, "Interrupted."), (signal.SIGTERM, 0, "")])
def test_following_shows_what_comes_and_ends_when_told(lines: Console, number: int, code: int, said: str) -> None:
    append(lines, "before")
    process = lines.start("consume", "lines", "--follow", "--from-beginning")
    assert process.stdout is not None
    assert process.stdout.readline() == "before\n"
    append(lines, "one", "two")
    assert [process.stdout.readline() for _ in range(2)] == ["one\n", "two\n"]
    process.send_signal(number)
    out, err = process.communicate(timeout=240)
    assert (process.returncode, out, err.strip()) == (code, "", said)


def test_following_starts_at_the_end_and_waits_without_work(lines: Console) -> None:
    append(lines, "before")
    process = lines.start("consume", "lines", "--follow", "--max-records", "2")

    # It says nothing when it is ready, so records are added until it has seen two.
    def one_more() -> bool:
        append(lines, "after")
        return process.poll() is not None

    wait_until(one_more, "the end")
    out, _ = process.communicate()
    assert (process.returncode, out) == (0, "after\nafter\n")


def test_a_reader_that_goes_away_ends_consume_without_a_word(lines: Console) -> None:
    append(lines, *("x" * 100 for _ in range(20_000)))
    for options in ([], ["--json"], ["--follow", "--from-beginning"]):
        process = lines.start("consume", "lines", *options)
        assert process.stdout is not None
        assert "x" * 100 in process.stdout.readline()
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == ""
        process.stderr.close()
        assert process.wait(30) == 0


def test_a_reader_that_goes_away_ends_following_at_the_next_record(lines: Console) -> None:
    append(lines, "before")
    process = lines.start("consume", "lines", "--follow", "--from-beginning")
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() == "before\n"
    process.stdout.close()
    append(lines, "after")
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait(30) == 0


def test_a_slow_pipe_is_written_as_it_comes(lines: Console) -> None:
    process = lines.start("produce", "lines", stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write("a line\nha")
    process.stdin.flush()
    wait_until(lambda: end(lines) == 1, "the first line")
    process.stdin.write("lf\n")
    _, err = process.communicate(timeout=240)
    assert process.returncode == 0
    assert "produced 2 records to lines" in err
    assert lines("consume", "lines").stdout == "a line\nhalf\n"


def test_interrupted_produce_is_130(lines: Console) -> None:
    process = lines.start("produce", "lines", stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write("a line\n")
    process.stdin.flush()
    wait_until(lambda: end(lines) == 1, "the record")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=240)
    assert (process.returncode, err.strip()) == (130, "Interrupted.")


def on_a_terminal(console: Console, *arguments: str, **environment: str) -> str:
    """Run with stdout and stderr on a terminal; return what it showed."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock.plugins.operate.cli", *arguments],
        cwd=console.directory,
        env={**os.environ, **console.environment, "TERM": "xterm", "COLUMNS": "120", **environment},
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    shown = b""
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:  # the other end was closed
            piece = b""
        if not piece:
            break
        shown += piece
    os.close(ours)
    assert process.wait(30) == 0, shown
    return shown.decode()


def test_a_terminal_gets_progress_tables_and_colour(lines: Console) -> None:
    lines.write("book.txt", "a line of a book\n" * 400_000)
    shown = on_a_terminal(lines, "produce", "lines", "--file", "book.txt")
    assert "producing lines" in shown
    assert re.search(r"records · .*records/s", shown)
    assert "produced 400,000 records to lines" in shown
    shown = on_a_terminal(lines, "topics", "list")
    assert "400,000" in shown
    assert "─" in shown
    assert "\x1b[" in on_a_terminal(lines, "--help")
    assert "\x1b[" not in on_a_terminal(lines, "--help", NO_COLOR="1")


def test_no_record_controls_the_terminal_and_elsewhere_its_bytes_are_exact(console: Console) -> None:
    """What moves the cursor, sets colours or the title, or turns the direction of text; a byte that is not UTF-8."""
    hostile = "\x1b[2J\x1b]0;title\x07\x9b31m\x7f\u202e\r"
    counting(console)
    with open_log(Settings(data_dir=str(console.directory / ".penstock"))) as log:
        log.append(OutputBatch("words", [hostile.encode()], [hostile.encode()], [0], [((hostile, hostile.encode()),)]))
        log.append(OutputBatch("dead", [b"k"], [b"\x9b31m\xff"], [0]))
    run()
    escaped = "\\u001b[2J\\u001b]0;title\\u0007\\u009b31m\\u007f\\u202e\\u000d"
    for verb in (
        ("consume", "words", "--print-key"), ("consume", "words", "--json"), ("state", "export", TARGET, "counts"),
        ("state", "get", TARGET, "counts", hostile),
    ):  # fmt: skip
        shown = on_a_terminal(console, *verb).replace("\r\n", "\n")
        assert all(each.isprintable() or each in "\n\t" for each in shown), (verb, shown)
        assert escaped in shown or escaped.replace("\\u000d", "\\r") in shown, (verb, shown)
    assert on_a_terminal(console, "consume", "dead", "--serde", "bytes") == "\\x9b31m\\xff\r\n"
    lines = (
        console("consume", "words", "--print-key").stdout_bytes
        + console("consume", "dead", "--serde", "bytes").stdout_bytes
    )
    assert lines == f"{hostile}\t{hostile}\n".encode() + b"\x9b31m\xff\n"
    assert console.json("consume", "words", "--json")["value"] == hostile


def test_a_full_disk_behind_stdout_is_an_error(lines: Console) -> None:
    append(lines, "x" * 100_000)
    with open("/dev/full", "wb") as full:
        process = subprocess.run(
            [sys.executable, "-m", "penstock.plugins.operate.cli", "consume", "lines"],
            cwd=lines.directory, stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert process.returncode == 1
    assert "No space left on device" in process.stderr
    assert "Traceback" not in process.stderr


def in_a_shell(console: Console, command: str) -> subprocess.CompletedProcess[str]:
    """Run a command line of a shell, in which `penstock` is the command."""
    return subprocess.run(
        ["sh", "-c", f'penstock() {{ {sys.executable} -m penstock.plugins.operate.cli "$@"; }}; {command}'],
        cwd=console.directory, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    "streams", ["2>/dev/full", "2>&-", ">&-", "<file >&- 2>&-", "--log-format json --log-level debug 2>/dev/full"]
)
def test_what_was_done_was_done_where_remarks_and_data_lead_nowhere(streams: str, console: Console) -> None:
    """A full disk behind stderr, and streams that are closed: who sees an error would do it again."""
    counting(console)
    console.write("file", "bad\nto\n")
    with_file = f"penstock produce words --file file {streams.partition('--log')[0].partition(' 2')[0]}"
    assert in_a_shell(console, with_file).returncode == 0
    ran = in_a_shell(console, f"penstock run {TARGET} --engine embedded {streams}")
    assert (ran.returncode, "Traceback" in ran.stderr) == (0, False), ran
    assert console("consume", "totals", "--print-key", "--value-serde", "int").stdout == "to\t1\n"
    assert in_a_shell(console, f"penstock nothing {streams.partition('--log')[0]}").returncode == 2


def test_no_file_gets_the_number_of_a_closed_stream(console: Console) -> None:
    """Nor in a task host: libraries in C write their messages to that number."""
    counting(console)
    console("produce", "words", stdin="to\n")
    console.write("descriptors.py", NUMBERS)
    ran = in_a_shell(
        console, "penstock run descriptors.py:application --engine embedded --set processes=1 >&- 2>&- <&-"
    )
    assert ran.returncode == 0
    assert console("consume", "totals").stdout.splitlines() == ["/dev/null /dev/null"]


NUMBERS = """
import os
from penstock import Application, Processor, Topology, key_value_store

class Numbers(Processor):
    def process(self, record):
        self.context.get_store("seen").put("k", 1)
        self.context.forward(record.with_value(" ".join(os.readlink(f"/proc/self/fd/{each}") for each in (1, 2))))

topology = Topology().add_source("in", "words").add_processor("numbers", Numbers, "in", stores=[key_value_store("seen")])
topology.add_sink("out", "totals", "numbers", value_serde="str")
application = Application("numbers", topology)
"""
