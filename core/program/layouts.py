"""Layouts: the stores of a task, and for each its backend and whether it is in the changelog.

The name of each version of a task's state contains the id of the layout in which it was written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from hashlib import sha256
from typing import Any

from ..store import StoreBuilder
from ..store.kept_store import KeptStore, Layout
from ..store.specs import KEY_VALUE

_LATER_FIELDS = {"kind": KEY_VALUE, "fixed_options": {}, "is_indexed": False}
"""Fields that are left out of a layout's data, and so of its id, while they have these values."""
_NAMED = re.compile(r"[0-9]+-[0-9a-f]+_([0-9a-f]{8})(-|$)")


def layout_id(layout: Layout) -> str:
    """Return a short name for a layout."""
    return sha256(json.dumps(layout_to_data(layout), sort_keys=True).encode()).hexdigest()[:8]


def layout_to_data(layout: Layout) -> dict[str, Any]:
    """Return a layout as data for JSON. The generation is called `life` there."""
    return {
        name: {
            ("life" if key == "generation" else key): value
            for key, value in asdict(each).items()
            if key not in _LATER_FIELDS or value != _LATER_FIELDS[key]
        }
        for name, each in sorted(layout.items())
    }


def layout_from_data(data: Mapping[str, Any]) -> Layout:
    """Return the layout of data that `layout_to_data` made."""
    return {
        name: KeptStore(**{("generation" if key == "life" else key): value for key, value in each.items()})
        for name, each in data.items()
    }


def layout_of_fingerprint(stores: Mapping[str, Mapping[str, Any]]) -> Layout:
    """Return the layout of a sub-topology's stores in a fingerprint."""
    return {
        name: KeptStore(
            each["backend"],
            each["logged"],
            each["timestamped"],
            each.get("expires", each["ttl_ms"] is not None),
            kind=each.get("store_kind", KEY_VALUE),
            fixed_options=each.get("fixed_options", {}),
            is_indexed=each.get("is_indexed", False),
        )
        for name, each in stores.items()
    }


@dataclass(frozen=True)
class Layouts:
    """The layout of a sub-topology's tasks, and the earlier ones by their ids.

    The name of each version of a task's state contains the id of the layout in which it was written. So whatever a
    crash leaves behind, the version of a local copy and of a delta tells which stores it has.
    """

    now: Layout
    earlier: Mapping[str, Layout] = field(default_factory=dict)

    @classmethod
    def of_program(cls, stores: Sequence[StoreBuilder], default_backend: str) -> Layouts:
        """Return the layout of a program that follows on none."""
        return cls({store.name: KeptStore.of(store, default_backend) for store in stores})

    @cached_property
    def id(self) -> str:
        """The id of the present layout."""
        return layout_id(self.now)

    def followed_by(self, now: Layout) -> Layouts:
        """Return the layouts after a change of the program: `now` is the present one, and this one an earlier one."""
        return Layouts(
            now, {name: each for name, each in self.earlier.items() if name != self.id} | {self.id: self.now}
        )

    def of_version(self, version: str) -> Layout | None:
        """Return the layout in which a version was written; None for the empty state and for unknown layouts."""
        name = id_of_version(version)
        return self.now if name == self.id else self.earlier.get(name or "")


def id_of_version(version: str) -> str | None:
    """Return the id of the layout in a version's name; None if the name has none.

    >>> id_of_version("000000000012-1a2b3c4d_00c0ffee"), id_of_version("000000000012-1a2b3c4d")
    ('00c0ffee', None)
    """
    named = _NAMED.match(version)
    return named[1] if named else None
