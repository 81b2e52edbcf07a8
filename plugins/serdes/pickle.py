"""The `pickle` serde: any Python object, for bytes from a trusted source only."""

from __future__ import annotations

import pickle
import reprlib
from io import BytesIO
from typing import Any

from penstock import Serde, SerdeError


class PickleSerde(Serde[Any]):
    """Python's own pickle. It is used only where it is named.

    **Reading a pickle runs whatever code it says.** Name this serde only where nobody else can write: never
    for a topic that others produce to, nor for state in a location that others can write to. A pickle names classes
    by module, so what was written can be read only while those classes keep their place and shape.
    Equal values may have different bytes: do not use it for store keys.

    >>> PickleSerde().deserialize(PickleSerde().serialize({1, 2}))
    {1, 2}
    """

    saved_name = "penstock.plugins.serdes.pickle.PickleSerde"

    def serialize(self, value: Any) -> bytes:
        """Return `value` pickled. Raises SerdeError for what pickle cannot hold."""
        try:
            return pickle.dumps(value, protocol=5)
        except Exception as error:
            raise SerdeError(
                f"serde 'pickle': cannot write {type(value).__module__}.{type(value).__qualname__} "
                f"{reprlib.repr(value)}: {type(error).__name__}: {error}; keep only plain data in it"
            ) from error

    def deserialize(self, data: bytes) -> Any:
        """Return the object. Raises SerdeError for bytes that are no pickle, or that name a missing class."""
        try:
            try:
                return pickle.loads(data)
            except ModuleNotFoundError:
                return _MovedClasses(BytesIO(data)).load()
        except Exception as error:
            raise SerdeError(
                f"serde 'pickle': cannot read {len(data)} bytes {data[:40]!r}: {type(error).__name__}: {error}; "
                "name the serde they were written with, and keep the classes where they were"
            ) from error


class _MovedClasses(pickle.Unpickler):
    """Finds `Windowed` and other values of stores also by the module that they had when they were pickled."""

    def find_class(self, module: str, name: str) -> Any:
        """Return the class."""
        return super().find_class("penstock" if module.startswith("penstock.store_kinds.") else module, name)
