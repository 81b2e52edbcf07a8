"""The cluster on which an application runs: another one under the same application is refused at the start."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from penstock import Application, ConfigError, IncompatibleStateError, Lease, Log
from penstock.plugins.engine.task import notes
from penstock.plugins.engine.task.locations import Places
from penstock.support.private_files import make_private_directory, write_private_text


def check_cluster(application: Application, log: Log) -> str:
    """Return the id of the cluster that `log` is on; "" if the log has no such ids.

    The application's note in the log names the cluster on which it ran; a mirror has a copy of this note. Where the log
    has no program of the application, the file beside the local state of this machine names it. Raises
    IncompatibleStateError if that is another cluster, unless the setting `cluster_check` is False.
    """
    now = log.cluster_id()
    if not now or not application.settings.cluster_check:
        return now
    shown = f"the log {application.settings.shown('log')!r} is on cluster {now!r}"
    before = notes.CLUSTER.read(application.id, log)
    if before not in ("", now):
        raise IncompatibleStateError(
            f"application {application.id!r} ran on cluster {before!r}, and {shown}: its positions are those of the "
            "other cluster. Correct the setting 'log'. If this cluster takes over: `penstock reset` gives up the "
            "positions and the state; where all topics have the same records at the same offsets, set cluster_check to "
            "False for one start"
        )
    if not before and not notes.PROGRAM.read(application.id, log):
        file = _file(application)
        here = _read(file)
        if here not in ("", now):
            raise IncompatibleStateError(
                f"application {application.id!r} ran on cluster {here!r} with the local state of this machine, and "
                f"{shown}, which has nothing of it: it would begin without its state. Correct the setting 'log'. To "
                f"begin on this cluster, set cluster_check to False for one start, or delete {file}"
            )
    return now


def note_cluster(application: Application, log: Log | Lease, cluster: str, before: str) -> None:
    """Save the id of the cluster, in the log and beside the local state. `before`: the one in the log."""
    if not cluster:
        return
    if cluster != before:
        notes.CLUSTER.write(application.id, log, cluster)
    file = _file(application)
    if file is not None and _read(file) != cluster:
        with suppress(OSError):  # the log has it; this machine may have no local state
            make_private_directory(file.parent)
            aside = file.with_name(f"{file.name}.new")
            write_private_text(aside, cluster)
            os.replace(aside, file)


def forget_cluster(application: Application, log: Log) -> None:
    """Forget the cluster, in the log and beside the local state: the next start is the first one on its cluster."""
    if notes.CLUSTER.read(application.id, log):
        notes.CLUSTER.take_back(application.id, log)
    file = _file(application)
    if file is not None:
        with suppress(OSError):
            file.unlink(missing_ok=True)


def _file(application: Application) -> Path | None:
    """Return the file beside the local state; None where the state's directory is unknown, as on a Spark driver."""
    with suppress(ConfigError):
        return Places.of(application).cluster
    return None


def _read(file: Path | None) -> str:
    try:
        return "" if file is None else file.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""
