"""`penstock reset`."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.log import Log
from penstock.plugins.engine.program import reset as engine
from penstock.plugins.logs.local import LocalLog
from penstock.plugins.operate.cli.options import open_log
from penstock.record import OutputBatch, TopicPartition
from penstock.settings.settings import Settings

from ..waiting import wait_until
from .applications import TARGET, counting, run
from .console import Console

REPARTITION = "counting-by-word-repartition"
PARTITIONS = [TopicPartition("words", 0), TopicPartition("words", 1)]


@pytest.fixture
def words(console: Console) -> Console:
    """An application that has counted `a a b` in the first partition and `a c` in the second, at times 1, 2, ... and
    11, 12."""
    counting(console)
    with logs(console) as log:
        for partition, text, first in ((0, "aab", 1), (1, "ac", 11)):
            append(log, partition, text, first)
    run()
    return console


def logs(console: Console) -> Any:
    return open_log(Settings(data_dir=str(console.directory / ".penstock")))


def append(log: Log, partition: int, text: str, first: int) -> None:
    values = [each.encode() for each in text]
    times = list(range(first, first + len(values)))
    log.append(OutputBatch("words", [b"k"] * len(values), list(values), times, None, [[partition]] * len(values)))


def totals(console: Console) -> list[str]:
    """Return what was counted since this was last asked."""
    text = console("consume", "totals", "--print-key", "--key-separator", "=", "--value-serde", "int").stdout
    with logs(console) as log:
        for partition in (TopicPartition("totals", 0), TopicPartition("totals", 1)):
            log.purge(partition, log.end_offsets([partition])[partition])
    return sorted(text.split())


def positions(console: Console) -> list[int | None]:
    with logs(console) as log:
        return list(log.committed("counting", PARTITIONS).values())


def test_everything_is_counted_again_from_nothing(words: Console) -> None:
    assert totals(words) == ["a=1", "a=2", "a=3", "b=1", "c=1"]
    run()
    assert totals(words) == []
    result = words("reset", TARGET, "--yes")
    assert [line.split() for line in result.stdout.splitlines()[:3]] == [
        ["TOPIC", "PARTITION", "NOW", "THEN"],
        ["words", "0", "3", "0"],
        ["words", "1", "2", "0"],
    ]
    assert f"topic {REPARTITION} is deleted\n" in result.stdout
    assert "state of counts is deleted: the changelog (directory:changelog) of 2 tasks" in result.stdout
    assert result.stderr == "counting was reset: the next run starts from there\n"
    assert REPARTITION not in words("topics", "list", "--internal", "--names").stdout
    data = words.directory / ".penstock"
    assert not [
        path
        for folder in ("changelog", "state")
        for path in (data / folder).rglob("*")
        if path.is_dir() and "_" in path.name
    ]
    run()
    assert totals(words) == ["a=1", "a=2", "a=3", "b=1", "c=1"]


@pytest.mark.parametrize(
    ("options", "then", "said"),
    [
        (["--to-earliest"], [0, 0], ""),
        (["--to-latest"], [4, 2], ""),
        (["--to-time", "12"], [4, 1], ""),
        (["--to-time", "1970-01-01T00:00:00.002Z"], [1, 0], ""),
        (["--to-time", "1h"], [4, 2], ""),
        (["--to-time", "30000d"], [0, 0], ""),
        (["--shift-by", "-1"], [2, 1], ""),
        (["--shift-by", "1"], [4, 2], "words partition 1 has no offset 3: 2 is the nearest"),
        (["--shift-by", "-3"], [0, 0], "words partition 1 has no offset -1: 0 is the nearest"),
        (["--to-offsets", "words:1=1"], [3, 1], ""),
        (["--to-offsets", "words:1=7"], [3, 2], "words partition 1 has no offset 7: 2 is the nearest"),
        (["--to-offsets", "offsets.txt"], [1, 0], ""),
        (["--to-earliest", "--topic", "words"], [0, 0], ""),
    ],
)  # fmt: skip
def test_where_it_goes(words: Console, options: list[str], then: list[int], said: str) -> None:
    with logs(words) as log:
        append(log, 0, "d", 4)
    words.write(
        "offsets.txt", "# as kafka-consumer-groups exports them, and as one types them\nwords,0,1\n\nwords:1=0\n"
    )
    before = positions(words)
    dry = words("reset", TARGET, *options, "--dry-run", "--json")
    assert positions(words) == before == [3, 2]
    result = words("reset", TARGET, *options, "--yes", "--json")
    assert (result.stdout, result.stderr.splitlines()[:-1]) == (dry.stdout, dry.stderr.splitlines())
    assert dry.stderr == (f"{said}\n" if said else "")
    assert positions(words) == then
    totals(words)
    run()
    left = [each for text, at in zip(("aabd", "ac"), then, strict=True) for each in text[at:]]
    assert sorted(each.partition("=")[0] for each in totals(words)) == sorted(left)


def test_a_topic_that_is_not_named_stays_where_it_is(console: Console) -> None:
    console.write(
        "two.py",
        "from penstock import Application, Topology\n"
        "topology = Topology().add_source('a', 'a').add_source('b', 'b').add_sink('out', 'out', ['a', 'b'])\n"
        "application = Application('two', topology)\n",
    )
    console("topics", "create", "a", "b", "out")
    console("produce", "a", stdin="1\n2\n")
    console("produce", "b", stdin="1\n2\n")
    run("two:application", subtopologies=1)
    moves = console.json("reset", "two:application", "--topic", "b", "--json", "--yes")["positions"]
    assert [(each["topic"], each["now"], each["then"]) for each in moves] == [("a", 2, 2), ("b", 2, 0)]
    console("produce", "a", stdin="3\n")
    run("two:application", subtopologies=1)
    assert console.json("lag", "two:application", "--json")["lag"] == 0
    assert sorted(console("consume", "out").stdout.split()) == sorted("1212" + "123")


def test_before_the_first_run_it_says_where_to_start(console: Console) -> None:
    counting(console)
    with logs(console) as log:
        append(log, 0, "abc", 1)
    result = console("reset", TARGET, "--to-offsets", "words:0=2", "--yes")
    assert [line.split() for line in result.stdout.splitlines()[1:3]] == [
        ["words", "0", "-", "2"],
        ["words", "1", "-", "-"],
    ]
    run()
    assert totals(console) == ["c=1"]


def test_what_waits_in_a_repartition_topic_is_dropped_and_said(words: Console) -> None:
    totals(words)
    with logs(words) as log:
        append(log, 0, "xyz", 5)
    run(subtopologies=1)
    result = words("reset", TARGET, "--to-latest", "--yes")
    assert f"topic {REPARTITION} is deleted; 3 records that wait in it are dropped\n" in result.stdout
    run()
    assert totals(words) == []


def test_topics_of_an_application_whose_id_begins_alike_stay(words: Console) -> None:
    with logs(words) as log:
        log.create_topic("counting-2-by-word-repartition", 1, internal=True)
        log.create_topic("counting-by-hand", 1)
        log.create_topic("counting-counts-changelog", 1, internal=True)
        log.append(OutputBatch("counting-counts-changelog", [b"k"], [b"v"], [1]))
    result = words("reset", TARGET, "--yes")
    assert "topic counting-counts-changelog is deleted\n" in result.stdout
    assert result.stderr.startswith("topic counting-2-by-word-repartition stays, for it may be of another application")
    assert words("topics", "list", "--internal", "--names").stdout.split() == [
        "counting-2-by-word-repartition", "counting-by-hand", "dead", "totals", "words",
    ]  # fmt: skip


def test_a_program_that_no_longer_fits_starts_afresh(words: Console) -> None:
    totals(words)
    with logs(words) as log:
        log.delete_topic("words")
        log.create_topic("words", 3)
        append(log, 2, "ab", 1)
    with pytest.raises(Exception, match="partitions"):
        run()
    words("reset", TARGET, "--yes")
    run()
    assert totals(words) == ["a=1", "b=1"]


def test_it_is_refused_while_the_application_runs(words: Console) -> None:
    with logs(words) as log:
        lease = log.lease("counting", "a driver of ours", 60_000)
        before = positions(words)
        assert "is already run by a driver of ours" in words("reset", TARGET, "--yes", code=1).stderr
        assert "words" in words("reset", TARGET, "--dry-run").stdout
        assert positions(words) == before
        lease.release()
        words("reset", TARGET, "--yes")
        log.lease("counting", "the next driver", 1_000).release()


def test_nothing_happens_without_a_yes(words: Console) -> None:
    before = positions(words)
    result = words("reset", TARGET, code=2)
    assert "add --yes to do this" in result.stderr
    assert "PARTITION" in result.stdout
    assert positions(words) == before
    with logs(words) as log:
        log.lease("counting", "the next driver", 1_000).release()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--to-latest", "--shift-by", "1"], "--to-latest and --shift-by exclude each other"),
        (["--to-time", "yesterday"], "--to-time 'yesterday': expected ms since the epoch, a time like"),
        (["--to-offsets", "words:0=1", "--to-offsets", "words:0=2"], "--to-offsets says two things of words:0: 1 and 2"),
        (["--to-offsets", "twice.txt", "--to-offsets", "words:0=2"], "says two things of words:0: 1 and 2; say one"),
        (["--to-offsets", "words=1"], "expected TOPIC:PARTITION=OFFSET, or a file with a line for each (No such file"),
        (["--to-offsets", "wrong.txt"], "wrong.txt, line 2: expected TOPIC:PARTITION=OFFSET or TOPIC,PARTITION,OFFSET"),
        (["--to-offsets", "words:2=1"], "words:2=1: the application reads no such partition; it reads: words:0, " "words:1"),
        (["--topic", "wrods"], "has no source topic 'wrods'; did you mean 'words'?"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_said(words: Console, options: list[str], said: str) -> None:
    words.write("wrong.txt", "words:0=1\nwords:0=one\n")
    words.write("twice.txt", "words:0=1\nwords,0,1\n")
    before = positions(words)
    assert said in words("reset", TARGET, "--yes", *options, code=2).stderr
    assert positions(words) == before


def test_the_copy_of_another_host_is_not_taken_for_the_new_state(
    words: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    totals(words)
    with logs(words) as log:
        append(log, 0, "a", 9)
    run(state_dir="elsewhere")
    assert totals(words) == ["a=4"]
    words("reset", TARGET, "--to-offsets", "words:0=3", "--yes")
    assert list((words.directory / ".penstock/elsewhere/counting").glob("1_?"))
    run(state_dir="elsewhere")
    assert totals(words) == ["a=1"]


def test_a_reset_that_was_overtaken_deletes_nothing_of_its_successor(
    words: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stood still after the step that counts, for longer than its lease lasts, and a driver has begun."""
    totals(words)
    original = LocalLog.set_positions

    def overtaken(log: LocalLog, *arguments: Any) -> None:
        monkeypatch.undo()
        original(log, *arguments)
        with log._storage.write("let the lease run out") as (transaction, _):
            transaction.delete("leases", b"counting")
        log.lease("counting", "the next driver", 60_000)
        monkeypatch.chdir(words.directory)
        run()

    monkeypatch.setattr(LocalLog, "set_positions", overtaken)
    assert "lost the lease of application 'counting'" in words("reset", TARGET, "--yes", code=1).stderr
    with logs(words) as log:
        append(log, 0, "a", 9)
    run(state_dir="elsewhere")
    assert totals(words) == ["a=1", "a=2", "a=3", "a=4", "b=1", "c=1"]


# -- killed in the middle


class Killed(Exception):
    pass


STEPS = ["delete_checkpoint", "set_positions", "delete_topic", "set_positions again", "open_deltas", "remove_all"]


@pytest.fixture(params=[f"{when} {step}" for step in STEPS for when in ("before", "after")])
def killed(request: pytest.FixtureRequest, words: Console, monkeypatch: pytest.MonkeyPatch) -> str:
    """A reset that ended at a step; says at which."""
    when, _, step = str(request.param).partition(" ")
    name = step.partition(" ")[0]
    left = [2 if step.endswith("again") else 1]
    owner: Any = LocalLog if name in ("set_positions", "delete_topic") else engine
    original = getattr(owner, name)

    def fail(*arguments: Any) -> Any:
        left[0] -= 1
        if left[0] or when == "after":
            result = original(*arguments)
        if left[0] == 0:
            raise Killed(step)
        return result

    totals(words)
    checkpoint = words.write(".penstock/checkpoint/counting/current.json", "{}").parent
    with logs(words) as log:
        append(log, 0, "a", 5)
        run(subtopologies=1)
        append(log, 1, "c", 15)
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, fail)
        assert isinstance(failing(words, "reset", TARGET, "--yes"), Killed)
    assert checkpoint.exists() is (request.param == "before delete_checkpoint")
    return str(request.param)


def failing(console: Console, *arguments: str) -> BaseException | None:
    from click.testing import CliRunner

    from penstock.plugins.operate.cli.group import penstock

    return CliRunner().invoke(penstock, list(arguments), standalone_mode=False).exception


def test_a_run_after_a_kill_goes_on_from_before_or_starts_from_after(killed: str, words: Console) -> None:
    run()
    before = killed in ("before delete_checkpoint", "after delete_checkpoint", "before set_positions")
    assert totals(words) == (["a=4", "c=2"] if before else ["a=1", "a=2", "a=3", "a=4", "b=1", "c=1", "c=2"])
    assert words.json("lag", TARGET, "--json")["lag"] == 0


def test_reset_again_after_a_kill_is_as_if_it_had_not_been(killed: str, words: Console) -> None:
    words("reset", TARGET, "--yes")
    assert not (words.directory / ".penstock/checkpoint/counting").exists()
    run()
    assert totals(words) == ["a=1", "a=2", "a=3", "a=4", "b=1", "c=1", "c=2"]


@pytest.mark.parametrize("seen", ["checkpoint", "positions", "topic", "changelog"])
def test_a_killed_process_leaves_before_or_after(words: Console, seen: str) -> None:
    """Whatever step it had come to when the trace of one was seen, with nobody to clean up behind it."""
    totals(words)
    checkpoint = words.write(".penstock/checkpoint/counting/current.json", "{}")
    changelog = words.directory / ".penstock/changelog/counting"
    with logs(words) as log:
        append(log, 0, "a", 5)
        process = words.start("reset", TARGET, "--yes")
        done = {
            "checkpoint": lambda: not checkpoint.exists(),
            "positions": lambda: log.committed("counting", PARTITIONS)[PARTITIONS[0]] == 0,
            "topic": lambda: REPARTITION not in log.topics(),
            "changelog": lambda: len(list(changelog.iterdir())) < 2,
        }[seen]
        wait_until(done, seen)
        process.kill()
        process.communicate()
    run()
    counted = totals(words)
    assert counted == ["a=1", "a=2", "a=3", "a=4", "b=1", "c=1"] or (seen == "checkpoint" and counted == ["a=4"])
    words("reset", TARGET, "--yes")
    run()
    assert totals(words) == ["a=1", "a=2", "a=3", "a=4", "b=1", "c=1"]
