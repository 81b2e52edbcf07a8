"""Unpacking: what `shipping.pack` wrote, with each of the user's own modules once, under its own name."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import module_from_spec, spec_from_file_location
from io import BytesIO
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

IS_SENT = "__penstock_sent__"
"""The name by which `shipping.pack` marks the globals of functions that are those of a module."""


class SentModule(ModuleType):
    """A module of the user's with what was sent of it: the classes and functions that the program refers to.

    So what looks for them by name, as `pickle` and an import in a function do, finds those that run, and no second
    copy. Other names are taken from the module's file, where that is on this machine.
    """

    def __getattr__(self, name: str) -> Any:
        """Return a submodule, or what the file has and was not sent; raise AttributeError for what is nowhere."""
        below = sys.modules.get(f"{self.__name__}.{name}")
        if below is not None:
            return below
        if not name.startswith("__") and name in (others := self._others()):
            value = self.__dict__[name] = others[name]
            return value
        raise AttributeError(
            f"module {self.__name__!r} was sent to this process with what the program refers to, and {name!r} is not "
            "among it: import it where the module of the program is made, not in a function"
        )

    def _others(self) -> dict[str, Any]:
        """Return what the module's file makes, in which the classes and functions that were sent are the sent ones."""
        others: dict[str, Any] | None = self.__dict__.get("__penstock_others__")
        if others is None:
            others = self.__dict__["__penstock_others__"] = {}
            file = self.__dict__.get("__file__")
            # A script would run once more.
            if self.__name__ != "__main__" and file is not None and Path(file).is_file():
                spec = spec_from_file_location(self.__name__, file)
                if spec is not None and spec.loader is not None:
                    module = module_from_spec(spec)
                    spec.loader.exec_module(module)
                    others |= vars(module)
                    vars(module).update(self.__dict__)
        return others


class Arrived:
    """What was packed, `cargo`, and the user's own modules that came along with it, `modules` by name.

    `is_apart`: classes are other ones than those of this process, as in a new process; else a class that is here
    already, or came with an earlier cargo, is that one. `made` are the classes and functions that came along.
    """

    def __init__(self, packed: bytes, *, is_apart: bool = False) -> None:
        self.modules: dict[str, SentModule] = {}
        self.made: list[Any] = []
        self._is_apart = is_apart
        reader = _Reader(packed, self._made_by)
        self.cargo: Any = reader.load()
        try:
            while (names := reader.load()) is not None:
                for module, values in names.items():
                    self._module(module).__dict__.update(values)
        except EOFError:
            pass  # nothing came along
        for name, each in self.modules.items():
            parent, _, last = name.rpartition(".")
            if parent in self.modules:
                setattr(self.modules[parent], last, each)

    def install(self) -> None:
        """Make the modules those of this process, for good: it runs this program only."""
        sys.modules.update(self.modules)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Make the modules those of this process meanwhile."""
        before = {name: sys.modules.get(name) for name in self.modules}
        sys.modules.update(self.modules)
        try:
            yield
        finally:
            for name, module in before.items():
                if module is not None:
                    sys.modules[name] = module
                elif sys.modules.get(name) is self.modules[name]:
                    del sys.modules[name]

    def _module(self, name: str) -> SentModule:
        found = self.modules.get(name)
        if found is None:
            found = self.modules[name] = SentModule(name)
        return found

    def _made_by(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return `function` of cloudpickle, or what does its work here."""
        name = function.__name__
        if name == "dynamic_subimport":
            return self._make_module
        if name == "_make_function":
            return self._noting(lambda code, given, *rest: function(code, self._globals(given), *rest))
        if name in ("_make_skeleton_class", "_make_skeleton_enum"):
            if self._is_apart:
                return self._noting(lambda *given: function(*given[:-2], None, given[-1]))
            return self._noting(function)
        return function

    def _make_module(self, name: str, values: dict[str, Any]) -> ModuleType:
        module = self._module(name)
        module.__dict__.update(values)
        return module

    def _globals(self, given: dict[str, Any]) -> dict[str, Any]:
        """Return the globals for a function: those of its module, if they were."""
        if not given.get(IS_SENT):
            return given
        found = self._module(given["__name__"]).__dict__
        found.update(given)
        return found

    def _noting(self, make: Callable[..., Any]) -> Callable[..., Any]:
        def made(*given: Any) -> Any:
            self.made.append(make(*given))
            return self.made[-1]

        return made


def unpack(packed: bytes) -> Any:
    """Return what `shipping.pack` packed, in a process that runs this program only.

    The user's own modules are this process's modules from then on.
    """
    arrived = Arrived(packed)
    arrived.install()
    return arrived.cargo


def is_sent(kind: type) -> bool:
    """Return whether a class came along with what was unpacked: other processes may not find it by its name."""
    return isinstance(sys.modules.get(kind.__module__), SentModule)


class _Reader(pickle.Unpickler):
    def __init__(self, packed: bytes, made_by: Callable[[FunctionType], Callable[..., Any]]) -> None:
        super().__init__(BytesIO(packed))
        self._made_by = made_by

    def find_class(self, module: str, name: str) -> Any:
        found = super().find_class(module, name)
        return self._made_by(found) if module.startswith("cloudpickle") and isinstance(found, FunctionType) else found
