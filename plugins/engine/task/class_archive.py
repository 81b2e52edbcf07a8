"""Archives of the classes that a JVM loads (AppCDS), which save a third or more of its start."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path


def fitting_name(java: str, jars: Path) -> str:
    """Return a name for the class archive of this Java and these jar files: `<that of the Java>-<that of the jars>`.

    A JVM takes classes from an archive only while the jar files have the sizes and times that they had when it was
    made, so these are part of the name: jars that were installed again, in the same place, have no archive yet.
    """
    launcher = Path(java).resolve()
    release = launcher.parent.parent / "release"
    version = release.read_text(errors="replace") if release.is_file() else ""
    with os.scandir(jars) as found:
        states = sorted((jar.name, jar.stat()) for jar in found)
    files = [f"{name} {state.st_size} {state.st_mtime_ns}" for name, state in states]
    return f"{digest(str(launcher), version)}-{digest(*files)}"


def archive_options(archive: Path | None) -> list[str]:
    """Return the JVM's options for an archive, none if there is none. The JVM skips an archive that does not fit."""
    if archive is None or not archive.exists():
        return []
    return [f"-XX:SharedArchiveFile={archive}", "-Xshare:auto", "-Xlog:cds*=off"]


def digest(*parts: str) -> str:
    """Return a short name for these texts."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
