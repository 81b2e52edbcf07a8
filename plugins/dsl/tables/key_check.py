"""check_keys: refuses joins of tables whose keys are not written alike."""

from __future__ import annotations

from typing import Any

from penstock.errors import PenstockError, TopologyError
from penstock.program.serdes import resolve_serde, serde_name

from ..serdes import Default, KnownSerde, WindowedKey


def check_keys(verb: str, left: KnownSerde, right: KnownSerde) -> None:
    """Refuse two serdes of keys that write different bytes: equal keys would not meet. Raises TopologyError.

    What is known only when the program is built is not checked.
    """
    if isinstance(left, WindowedKey) and isinstance(right, WindowedKey):
        check_keys(verb, left.inner, right.inner)
        return
    forms = [_form(each) for each in (left, right)]
    if None in forms or forms[0] == forms[1]:
        return
    raise TopologyError(
        f"{verb}: the keys of the left table are written with {_shown(left)}, those of the right one with "
        f"{_shown(right)}, so equal keys are in different partitions; give both the same key_serde, or bring one of "
        "them to the other's: table.to_stream().repartition(NAME, key_serde=...).to_table()"
    )


def _form(serde: KnownSerde) -> str | None:
    if isinstance(serde, WindowedKey):
        return "windowed"
    if serde is None or isinstance(serde, Default):
        return None
    try:
        return resolve_serde(serde, None, "key_serde").written_form()
    except PenstockError:
        return None


def _shown(serde: Any) -> str:
    return "a windowed serde" if isinstance(serde, WindowedKey) else repr(serde_name(serde))
