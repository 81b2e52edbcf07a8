"""An application that meets another cluster than before is refused at the start."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import Application, IncompatibleStateError, Topology
from penstock.plugins.engine.program.preparation import check, check_program, prepare
from penstock.plugins.engine.program.reset import plan_reset, reset, to_earliest
from penstock.plugins.engine.task import notes
from penstock.plugins.logs.memory import MemoryLog
from penstock.plugins.state.transfer.reshard.plan import plan_reshard

from ..rotation import examples


class Cluster(MemoryLog):
    """A log whose cluster has an id."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.create_topic("in", 1)
        self.create_topic("out", 1)

    def cluster_id(self) -> str:
        return self.name


def shop(machine: Path, *, checked: bool = True) -> Application:
    topology = Topology().add_source("source", "in").add_sink("sink", "out", "source")
    return Application("shop", topology, state_dir=str(machine), cluster_check=checked)


def mirror(source: MemoryLog, target: MemoryLog) -> None:
    """Copy the notes of the application, as a mirror of its internal topic does."""
    for note in (notes.PROGRAM, notes.CLUSTER):
        target.put_meta("shop", note.name, source.get_meta("shop", note.name) or b"")


def start_over(log: MemoryLog, machine: Path) -> None:
    application = shop(machine)
    reset(application, log, plan_reset(application, log, to_earliest), lambda: None)


def test_a_mirror_is_refused_until_it_is_taken(tmp_path: Path) -> None:
    one, other = Cluster("one"), Cluster("other")
    prepare(shop(tmp_path), one)
    mirror(one, other)
    with pytest.raises(IncompatibleStateError, match=r"ran on cluster 'one'.*is on cluster 'other'.*penstock reset"):
        prepare(shop(tmp_path / "new"), other)
    prepare(shop(tmp_path / "new", checked=False), other)
    prepare(shop(tmp_path / "new"), other)


def test_tools_that_use_positions_refuse_a_mirror(tmp_path: Path) -> None:
    """A layout that was resharded there had a note of the wrong cluster, so its start was not refused."""
    one, other = Cluster("one"), Cluster("other")
    prepare(shop(tmp_path), one)
    mirror(one, other)
    for tool in (lambda: plan_reshard(shop(tmp_path), other, 2), lambda: check_program(shop(tmp_path), other)):
        with pytest.raises(IncompatibleStateError, match="ran on cluster 'one'"):
            tool()


def test_a_reset_begins_on_the_cluster_as_it_is(tmp_path: Path) -> None:
    one, other = Cluster("one"), Cluster("other")
    prepare(shop(tmp_path), one)
    mirror(one, other)
    start_over(other, tmp_path)
    prepare(shop(tmp_path), other)
    with pytest.raises(IncompatibleStateError, match="ran on cluster 'other'.*is on cluster 'one'"):
        mirror(other, one)
        prepare(shop(tmp_path), one)


def test_an_empty_cluster_is_refused_where_the_local_state_is_of_another(tmp_path: Path) -> None:
    prepare(shop(tmp_path), Cluster("one"))
    file = tmp_path / "shop@cluster"
    with pytest.raises(IncompatibleStateError, match=f"nothing of it: it would begin.*delete {file}"):
        prepare(shop(tmp_path), Cluster("other"))
    assert file.read_text() == "one" and file.stat().st_mode & 0o777 == 0o600
    file.unlink()
    prepare(shop(tmp_path), Cluster("other"))


def test_a_check_changes_nothing(tmp_path: Path) -> None:
    log = Cluster("one")
    check(shop(tmp_path), log)
    assert notes.CLUSTER.read("shop", log) == "" and not list(tmp_path.iterdir())


def test_a_log_without_ids_is_not_checked(tmp_path: Path) -> None:
    prepare(shop(tmp_path), Cluster("one"))
    prepare(shop(tmp_path), Cluster(""))
    assert (tmp_path / "shop@cluster").read_text() == "one"


def test_a_program_of_before_is_taken_as_it_is(tmp_path: Path) -> None:
    """An earlier version saved no cluster; a restored backup has none either."""
    log = Cluster("one")
    prepare(shop(tmp_path), log)
    notes.CLUSTER.take_back("shop", log)
    (tmp_path / "shop@cluster").write_text("other")
    prepare(shop(tmp_path), log)
    assert notes.CLUSTER.read("shop", log) == (tmp_path / "shop@cluster").read_text() == "one"


STEPS = st.lists(
    st.tuples(st.sampled_from(["start", "start", "force", "reset", "mirror"]), st.integers(0, 1), st.integers(0, 1)),
    max_size=12,
)


@settings(max_examples=examples(60), deadline=None)
@given(STEPS)
def test_a_start_is_refused_exactly_where_another_cluster_was_met(steps: list[tuple[str, int, int]]) -> None:
    """Law: what names the cluster is the log's note, else, where it has no program, the file."""
    names, logs = ("one", "other"), (Cluster("one"), Cluster("other"))
    noted: list[str] = ["", ""]
    ran, files = [False, False], ["", ""]
    with TemporaryDirectory() as directory:
        machines = [Path(directory, each) for each in ("a", "b")]
        for step, at, machine in steps:
            log = logs[at]
            if step == "mirror":
                mirror(logs[1 - at], log)
                noted[at], ran[at] = noted[1 - at], ran[1 - at]
            elif step == "reset":
                start_over(log, machines[machine])
                noted[at] = files[machine] = ""
                ran[at] = False
            else:
                expected = noted[at] or ("" if ran[at] else files[machine])
                if step == "start" and expected not in ("", names[at]):
                    with pytest.raises(IncompatibleStateError, match=f"ran on cluster '{expected}'"):
                        prepare(shop(machines[machine]), log)
                    continue
                prepare(shop(machines[machine], checked=step == "start"), log)
                noted[at] = files[machine] = names[at]
                ran[at] = True
