"""Shipping: an application as bytes for workers that have penstock, but not the user's own modules."""

from __future__ import annotations

import sys
import sysconfig
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import packages_distributions
from pathlib import Path
from types import ModuleType
from typing import Any

from penstock.errors import ConfigError

_packing = threading.Lock()


def pack(cargo: Any) -> bytes:
    """Return `cargo` pickled; classes and functions of modules that are not installed go along by value.

    Raises ConfigError for something that cannot be pickled, such as an open file or a lock in a module or a
    processor's options.
    """
    from pyspark import cloudpickle

    # Modules are registered for the whole process, and another thread may pack its application now.
    with _packing, _by_value(cloudpickle):
        try:
            data: bytes = cloudpickle.dumps(cargo)  # type: ignore[no-untyped-call]
        except Exception as error:
            raise ConfigError(
                f"the application cannot be sent to Spark's workers: {type(error).__name__}: {error}. Whatever "
                f"its topology refers to "
                "must be picklable: make files, locks and connections in a processor's init"
            ) from error
    return data


@contextmanager
def _by_value(cloudpickle: ModuleType) -> Iterator[None]:
    registered = []
    for module in _own_modules():
        cloudpickle.register_pickle_by_value(module)
        registered.append(module)
    try:
        yield
    finally:
        for module in registered:
            cloudpickle.unregister_pickle_by_value(module)


def _own_modules() -> list[ModuleType]:
    """Return the imported modules that a worker could not import: files that belong to no installed distribution."""
    paths = sysconfig.get_paths()
    installed = tuple(
        {str(Path(paths[name]).resolve()) + "/" for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    )
    candidates = []
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if (
            file is None
            or name == "__main__"
            or name.partition(".")[0] == "penstock"
            or getattr(module, "__name__", None) != name
        ):
            continue
        if not str(Path(file).resolve()).startswith(installed):
            candidates.append(module)
    if not candidates:
        return []
    # An editable install keeps its files elsewhere; its modules can be imported all the same.
    distributions = packages_distributions()
    return [module for module in candidates if module.__name__.partition(".")[0] not in distributions]
