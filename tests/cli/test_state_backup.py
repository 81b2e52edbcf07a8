"""`penstock state backup`, `backups` and `restore`."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from penstock.record import TopicPartition

from ..small_disk import small_disk
from .applications import TARGET, counting, run
from .console import Console
from .test_reset import append, logs

COPY = ("--of", "counting", "--application-id", "copy")


@pytest.fixture
def counted(console: Console) -> Console:
    """An application that has counted `a a b`, and has read `c` and not counted it."""
    counting(console)
    with logs(console) as log:
        append(log, 0, "aab", 1)
    run()
    with logs(console) as log:
        append(log, 1, "c", 1)
    run(subtopologies=1)
    return console


def counts(console: Console, *options: str) -> dict[str, int]:
    found = console.json_lines("state", "export", TARGET, "counts", *options)
    return {each["key"]: each["value"] for each in found}


def files(console: Console) -> dict[str, int]:
    found = console.directory / "safe"
    return {str(each.relative_to(found)): each.stat().st_size for each in found.rglob("*") if each.is_file()}


def test_another_application_continues_from_a_backup(counted: Console) -> None:
    result = counted("state", "backup", TARGET, "safe")
    assert result.stdout.startswith("backup 2") and result.stdout.endswith("of counting: 2 tasks whole\n")
    run()
    assert counts(counted) == {"a": 2, "b": 1, "c": 1}
    result = counted("state", "restore", TARGET, "safe", *COPY)
    assert result.stdout.startswith("copy is restored from backup 2")
    assert counts(counted, "--application-id", "copy") == {"a": 2, "b": 1}
    with logs(counted) as log:
        append(log, 0, "ad", 5)
    run(application_id="copy")
    assert counts(counted, "--application-id", "copy") == {"a": 3, "b": 1, "c": 1, "d": 1}
    run()
    assert counts(counted) == {"a": 3, "b": 1, "c": 1, "d": 1}


def test_the_same_application_goes_back_after_a_reset(counted: Console) -> None:
    counted("state", "backup", TARGET, "safe")
    with logs(counted) as log:
        append(log, 0, "ad", 5)
    run()
    assert "is whole" in counted("state", "restore", TARGET, "safe", "--check").stdout, "also where it has run"
    result = counted("state", "restore", TARGET, "safe", code=1)
    assert "application 'counting' has run in the log" in result.stderr
    assert "penstock reset" in result.stderr
    counted("reset", TARGET, "--yes")
    counted("state", "restore", TARGET, "safe")
    assert counts(counted) == {"a": 2, "b": 1}
    run()
    assert counts(counted) == {"a": 3, "b": 1, "c": 1, "d": 1}


def test_a_second_backup_writes_what_is_new(counted: Console) -> None:
    counted("state", "backup", TARGET, "safe")
    first = files(counted)
    assert counted.json("state", "backup", TARGET, "safe", "--json")["unchanged"] == ["1_0", "1_1"]
    unchanged = set(files(counted)) - set(first)
    assert all(each.startswith(("counting/backups/", "counting/in-transit/")) for each in unchanged)
    run()
    made = counted.json("state", "backup", TARGET, "safe", "--json")
    assert (made["whole"], len(made["new"])) == ([], 1)
    [delta] = [each for each in set(files(counted)) - set(first) if each.endswith(".delta")]
    assert delta.startswith(f"counting/{made['new'][0]}/")
    listed = counted.json("state", "backups", TARGET, "safe", "--json")
    assert [each["name"] for each in listed][2:] == [made["name"]]
    names = [line.split()[0] for line in counted("state", "backups", TARGET, "safe").stdout.splitlines()]
    assert names == ["BACKUP", *[each["name"] for each in listed]]
    for each, expected in zip(listed, [{"a": 2, "b": 1}] * 2 + [{"a": 2, "b": 1, "c": 1}], strict=True):
        copy = f"copy-{each['name'][-4:]}"
        options = ("--of", "counting", "--application-id", copy)
        counted("state", "restore", TARGET, "safe", "--backup", each["name"], *options)
        assert counts(counted, "--application-id", copy) == expected


def test_a_backup_that_was_cut_short_is_none(counted: Console) -> None:
    """Its entry comes last; a half of it is damage."""
    counted("state", "backup", TARGET, "safe")
    [entry] = (counted.directory / "safe" / "counting" / "backups").glob("*.json")
    text = entry.read_text()
    entry.write_text(text[: len(text) // 2])
    result = counted("state", "restore", TARGET, "safe", *COPY, code=1)
    assert f"{entry.name} is damaged: its checksum does not match what it has" in result.stderr
    entry.write_text(text.replace('"in_transit": "0', '"in_transit": "1'))
    assert "is damaged" in counted("state", "restore", TARGET, "safe", *COPY, code=1).stderr
    result = counted("state", "backup", TARGET, "safe", "--json")
    assert "is damaged: its checksum" in result.stderr
    name = json.loads(result.stdout)["name"]
    counted("state", "restore", TARGET, "safe", *COPY, "--check", "--backup", name)
    (entry.parent / f"{name}.json").unlink()
    entry.unlink()
    result = counted("state", "restore", TARGET, "safe", *COPY, code=2)
    assert "there is no backup of application 'counting' in" in result.stderr
    counted("state", "backup", TARGET, "safe")
    counted("state", "restore", TARGET, "safe", *COPY)


def test_a_damaged_file_is_named_and_nothing_is_done(counted: Console) -> None:
    counted("state", "backup", TARGET, "safe")
    path = max((counted.directory / "safe").rglob("1_?/*.snapshot"), key=lambda each: each.stat().st_size)
    data = bytearray(path.read_bytes())
    data[-30] ^= 1
    path.write_bytes(data)
    for options in (["--check"], []):
        result = counted("state", "restore", TARGET, "safe", *COPY, *options, code=1)
        assert f"backup at {path.parent}: {path.name} is damaged: the checksum of frame" in result.stderr
    counted("state", "backup", TARGET, "safe")
    assert "is damaged" in counted("state", "restore", TARGET, "safe", *COPY, "--check", code=1).stderr
    made = counted.json("state", "backup", TARGET, "safe", "--whole", "--json")
    assert made["whole"] == ["1_0", "1_1"]
    counted("state", "restore", TARGET, "safe", *COPY, "--check")
    result = counted("state", "list", TARGET, "--application-id", "copy")
    assert "copy has saved no stores" in result.stderr
    run(application_id="copy")  # it begins afresh
    result = counted("state", "restore", TARGET, "safe", "--check", "--of", "counting", "--application-id", "other")
    assert result.stdout.endswith("is whole, and fits the topics\n")
    result = counted("state", "restore", TARGET, "safe", *COPY, code=1)
    assert "application 'copy' has run in the log" in result.stderr


def test_topics_that_do_not_fit(counted: Console) -> None:
    counted("state", "backup", TARGET, "safe")
    with logs(counted) as log:
        log.purge(TopicPartition("words", 0), 3)
    counted("state", "restore", TARGET, "safe", *COPY, "--check")
    with logs(counted) as log:
        append(log, 0, "d", 9)
        log.purge(TopicPartition("words", 0), 4)
    result = counted("state", "restore", TARGET, "safe", *COPY, code=1)
    assert "words-0 has offsets 4 to 4, and the backup continues at 3" in result.stderr
    counted("topics", "delete", "words", "--yes")
    counted("topics", "create", "words", "--partitions", "2")
    result = counted("state", "restore", TARGET, "safe", *COPY, code=1)
    assert "topic 'words' is another one than that of the backup (--other-topics takes it" in result.stderr
    counted("topics", "delete", "words", "--yes")
    counted("topics", "create", "words", "--partitions", "3")
    result = counted("state", "restore", TARGET, "safe", *COPY, code=1)
    assert "topic 'words' has 3 partitions, and had 2" in result.stderr


def test_mistakes_are_named(counted: Console, tmp_path: Path) -> None:
    result = counted("state", "restore", TARGET, "safe", code=2)
    assert "there is no backup of application 'counting' in" in result.stderr
    result = counted("state", "backup", TARGET, ".penstock/changelog", code=2)
    assert "is where the changelog of application 'counting' is: name another" in result.stderr
    result = counted("state", "backup", TARGET, "safe", "--application-id", "never", code=2)
    assert "application 'never' has saved nothing in the log" in result.stderr
    counted("state", "backup", TARGET, "safe")
    assert (
        "has no backup '2020'; it has: 2"
        in counted("state", "restore", TARGET, "safe", *COPY, "--backup", "2020", code=2).stderr
    )
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o500)
    if os.getuid():
        result = counted("state", "backup", TARGET, str(locked), code=1)
        assert "Permission denied; make it writable for user" in result.stderr
    (tmp_path / "file").write_text("")
    result = counted("state", "backup", TARGET, str(tmp_path / "file"), code=1)
    assert f"backup at {tmp_path}/file" in result.stderr
    assert "name another place" in result.stderr


def test_a_full_disk(counted: Console, tmp_path: Path) -> None:
    """What was written of the backup does not count; with room, the next one is whole."""
    with logs(counted) as log:
        append(log, 0, "".join(map(chr, range(0x4E00, 0x4E00 + 3_000))), 100)
    run()
    with small_disk(tmp_path / "small", 24) as disk:
        result = counted("state", "backup", TARGET, str(disk), code=1)
        assert f"backup at {disk}/counting/1_" in result.stderr
        assert "No space left on device; the disk is full" in result.stderr
        assert counted.json("state", "backups", TARGET, str(disk), "--json") == []


def test_a_restore_that_was_killed_is_repeated(counted: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until then no run starts; what it left is deleted."""
    from penstock.plugins.state.transfer.backups import restoring

    class Killed(BaseException):
        pass

    def killed(*given: object) -> None:
        raise Killed

    counted("state", "backup", TARGET, "safe")
    for step in ("commit", "_write_state", "_make_topics"):
        with monkeypatch.context() as patched:
            patched.setattr(restoring._Restoring, step, killed)
            with pytest.raises(Killed):
                counted("state", "restore", TARGET, "safe", *COPY)
        with pytest.raises(
            Exception, match=r"is being restored or filled \(restore from backup 2.*\), or that was cut short: repeat"
        ):
            run(application_id="copy")
    counted("state", "restore", TARGET, "safe", *COPY)
    run(application_id="copy")
    assert counts(counted, "--application-id", "copy") == {"a": 2, "b": 1, "c": 1}


def test_old_backups_are_deleted(counted: Console) -> None:
    for _ in range(3):
        counted("state", "backup", TARGET, "safe")
    names = [each["name"] for each in counted.json("state", "backups", TARGET, "safe", "--json")]
    assert counted.json("state", "backup", TARGET, "safe", "--keep", "3", "--json")["deleted"] == names[:1]
    result = counted("state", "backups", TARGET, "safe", "--keep", "1")
    assert all(name in result.stderr for name in names[1:]) and "deleted: " in result.stderr
    left = counted.json("state", "backups", TARGET, "safe", "--json")
    assert len(left) == 1 and left[0]["name"] > names[-1]
    assert [each["topic"] for each in left[0]["outputs"]] == sorted(each["topic"] for each in left[0]["outputs"])
    counted("state", "restore", TARGET, "safe", *COPY)
    assert counts(counted, "--application-id", "copy") == {"a": 2, "b": 1}
    for command in ("backup", "backups"):
        assert "--keep: expected 1 or more" in counted("state", command, TARGET, "safe", "--keep", "0", code=2).stderr
