"""Lets the commit that made the archive of saved state continue what this version writes: `python -m
tests.upgrades.back`. It has to make the same of it as of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from configparser import ConfigParser
from contextlib import closing
from pathlib import Path

from penstock.plugins.logs.kafka.log import KafkaLog
from penstock.plugins.testing.kafka_broker import KafkaBroker
from tests.processes import ROOT

from .saved import BASE, Saved, Verbs, unpack


def checked_out(directory: Path) -> Path:
    """Write out the commit with the tests of the archive, so that Python can import it; return the directory."""
    tree = directory / "tree"
    tree.mkdir()
    packed = subprocess.run(["git", "archive", BASE], cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
    subprocess.run(["tar", "x"], cwd=tree, check=True, input=packed)
    subprocess.run(["make", "view"], cwd=tree, check=True, stdout=subprocess.DEVNULL)
    unpack(directory / "archived")
    subprocess.run(["cp", "-rT", directory / "archived" / "upgrades", tree / "tests" / "upgrades"], check=True)
    subprocess.run(["cp", ROOT / "tests" / "upgrades" / "saved.tar.xz", tree / "tests" / "upgrades"], check=True)
    # Its plugins are those of its own setup.cfg, not of the package that is installed.
    config = ConfigParser()
    config.read(tree / "setup.cfg")
    about = tree / "build" / "view" / "penstock-0.1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {config['metadata']['name']}\nVersion: 0.1.0\n")
    points = config["options.entry_points"]
    (about / "entry_points.txt").write_text("".join(f"[{group}]{points[group]}\n" for group in points))
    return tree


def main() -> None:
    """Write with this version, and continue with the other one."""
    with tempfile.TemporaryDirectory() as temporary, KafkaBroker() as broker:
        directory = Path(temporary)
        tree = checked_out(directory)
        for made in (
            Saved(directory / "local"),
            Verbs(directory / "verbs"),
            Saved(directory / "kafka", (KafkaLog(broker.bootstrap), f"kafka:{broker.bootstrap}")),
        ):
            with closing(made):
                made.make()
        path = os.pathsep.join(map(str, (tree / "build" / "view", tree)))
        for arguments in ([directory], [directory, broker.bootstrap]):
            subprocess.run(
                [sys.executable, "-m", "tests.upgrades.base", *map(str, arguments)],
                cwd=tree,
                env={**os.environ, "PYTHONPATH": path},
                check=True,
            )


if __name__ == "__main__":
    main()
