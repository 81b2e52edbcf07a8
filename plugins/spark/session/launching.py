"""Starts Spark's JVM on this machine: its directory, and a class archive (AppCDS) that saves a third of the time."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

from penstock import ConfigError, RuntimeUnavailableError
from penstock.plugins.engine.task.class_archive import digest, fitting_name
from penstock.plugins.engine.task.locations import user_cache
from penstock.plugins.engine.task.temporary import TemporaryDirectory

JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Djdk.lang.Process.launchMechanism=VFORK"
"""Options for a short start: in a local session no record passes through the JVM, which only plans small batches.

The compiler and collector for large services cost more than they bring. The child processes are Hadoop's `chmod` calls.
"""

_LINKED = ("bin", "sbin", "jars")


def launch_home() -> Path | None:
    """Return a SPARK_HOME from which Python processes import the installed pyspark; None where it cannot be made.

    Spark puts its own archive of pyspark first on the path of every Python process it starts. Modules in an archive are
    compiled anew by each of these: about a second of each one's start, of which an application makes five.
    It is in the user's cache, for its path is part of what the archive of classes is valid for.
    """
    package = importlib.util.find_spec("pyspark")
    if "SPARK_HOME" in os.environ or package is None or package.origin is None:
        return None
    origin = Path(package.origin).parent
    if not (origin / "jars").is_dir():
        return None
    home = user_cache() / f"spark-{digest(str(origin))}"
    try:
        home.mkdir(parents=True, exist_ok=True)
        for name in _LINKED:
            _link(home / name, origin / name)
    except OSError:
        return None
    return home


def class_archive(java: str) -> Path | None:
    """Return where the archive for this Java and this pyspark is, or would be; None where there can be none."""
    home = launch_home()
    return None if home is None else home / f"classes-{fitting_name(java, home / 'jars')}.jsa"


def make_class_archive(java: str) -> Path:
    """Run a small application in a JVM that archives the classes it has loaded, at its end; return the archive.

    That takes about a minute. Raises ConfigError or RuntimeUnavailableError when there can be no archive, with the
    reason.
    """
    archive = class_archive(java)
    if archive is None:
        raise ConfigError(
            "there is nowhere to start Spark from but SPARK_HOME itself: unset SPARK_HOME, use the pyspark that pip "
            "installs, and let the user's cache directory (XDG_CACHE_HOME, ~/.cache) be writable"
        )
    with TemporaryDirectory("warmup") as directory:
        made = archive.with_name(f"{archive.name}.{os.getpid()}")
        done = subprocess.run(
            [sys.executable, "-m", "penstock.plugins.spark.warmup", str(directory), str(made)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
        try:
            if done.returncode != 0 or not made.exists():
                said = "\n".join(line for line in done.stdout.splitlines() if "[cds" not in line)
                raise RuntimeUnavailableError(
                    f"{java} made no archive of Spark's classes; everything works without one. The end of what it "
                    f"said:\n{said.strip()[-1500:]}"
                )
            os.replace(made, archive)
        finally:
            made.unlink(missing_ok=True)
    # Those for jar files that are no longer there: no JVM can use them, and each is large.
    of_this_java = archive.name.rpartition("-")[0]
    for old in archive.parent.glob(f"{of_this_java}*.jsa"):
        if old != archive:
            old.unlink(missing_ok=True)
    return archive


def _link(link: Path, target: Path) -> None:
    if not link.exists():
        # Write beside it, then move it: another process may do the same or read it now.
        new = link.with_name(f"{link.name}.{os.getpid()}")
        new.symlink_to(target)
        os.replace(new, link)
