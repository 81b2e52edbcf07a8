"""What a crash of the machine may leave of files: all that is on disk, and any part of what is in memory alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

from .durability import PAGE, dirty_pages

_SINGLE, _PARTS = 6, 6
"""How many images have a single page of what was not synced, and how many about half of them."""


class CrashImages:
    """Follows the files of an `on_disk`, whatever writes them. Names and sizes last, pages only when synced."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._random = Random(1)
        self._on_disk: dict[Path, tuple[int, bytes]] = {}
        """The number of each file, and its content on disk."""
        self._now: dict[Path, tuple[bytes, list[int]]] = {}
        """The content of each file as programs see it, and its pages that are in memory alone."""

    def look(self) -> None:
        """Note what is on disk now. Call it often: a page that is written twice in between was once on disk, or not."""
        before, self._on_disk, self._now = self._on_disk, {}, {}
        for file in sorted(each for each in self._directory.rglob("*") if each.is_file()):
            try:
                dirty = sorted(dirty_pages(file))
                content, number = file.read_bytes(), file.stat().st_ino
            except FileNotFoundError:  # a thread of its own renamed it
                continue
            old = before.get(file, (0, b""))
            name = file.relative_to(self._directory)
            self._now[name] = content, [each for each in dirty if each * PAGE < len(content)]
            on_disk = old[1] if old[0] == number else b""
            self._on_disk[file] = number, _mixed(on_disk, content, set(range(-(-len(content) // PAGE))) - {*dirty})

    def write_images(self, directory: Path, name: str) -> Iterator[Path]:
        """Yield directories below this one, with the files of each image."""
        for number, image in enumerate(self.images()):
            place = directory / f"{name}-{number}"
            for file, content in image.items():
                (place / file).parent.mkdir(parents=True, exist_ok=True)
                (place / file).write_bytes(content)
            yield place

    def images(self) -> Iterator[dict[Path, bytes]]:
        """Yield directories that a crash may leave: with none of the pages, one of them, about half of them."""
        pages = [(name, page) for name, (_, dirty) in self._now.items() for page in dirty]
        if not pages:
            yield {name: content for name, (content, _) in self._now.items()}
            return
        kept: list[list[tuple[Path, int]]] = [[]]
        kept += [[each] for each in self._random.sample(pages, min(_SINGLE, len(pages)))]
        kept += [[each for each in pages if self._random.random() < 0.5] for _ in range(_PARTS)]
        for chosen in kept:
            yield {
                name: _mixed(self._on_disk[self._directory / name][1], content, {at for of, at in chosen if of == name})
                for name, (content, _) in self._now.items()
            }


def _mixed(old: bytes, new: bytes, pages: set[int]) -> bytes:
    """Return old content with some pages of the new one; it ends where the last page ends that either has."""
    end = min(len(new), max([len(old), *((page + 1) * PAGE for page in pages)]))
    mixed = bytearray(old[:end].ljust(end, b"\0"))
    for page in pages:
        mixed[page * PAGE : (page + 1) * PAGE] = new[page * PAGE : (page + 1) * PAGE]
    return bytes(mixed[:end])
