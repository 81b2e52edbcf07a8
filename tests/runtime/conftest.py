"""Makes the faulty parts known by name, and forgets what was planned."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.hooks import registry

from .faults import COMPONENTS, FAULTS


@pytest.fixture(autouse=True)
def faulty_components(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for key, component in COMPONENTS.items():
        monkeypatch.setitem(registry().components, key, component)
    yield
    FAULTS.clear()
