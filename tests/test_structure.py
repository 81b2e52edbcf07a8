"""The shape of the source: no circle of files, no large file, contracts in docstrings, one place that reads a clock."""

from __future__ import annotations

import ast
import configparser
import importlib
import inspect
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from enum import Enum
from functools import cached_property
from pathlib import Path
from types import FunctionType

import penstock

ROOT = Path(__file__).parent.parent
CFG = configparser.ConfigParser()
CFG.read(ROOT / "setup.cfg")
FOLDERS = {
    name.strip(): ROOT / folder.strip()
    for name, _, folder in (line.partition("=") for line in CFG["options"]["package_dir"].strip().splitlines())
}


def module_name(source: Path) -> str:
    """Return the import name of a file."""
    package, folder = next(each for each in FOLDERS.items() if source.is_relative_to(each[1]))
    parts = source.relative_to(folder).with_suffix("").parts
    return ".".join([package, *(part for part in parts if part != "__init__")])


MODULES = {
    module_name(source): source for folder in FOLDERS.values() for source in sorted(folder.rglob("*.py"))
}  # fmt: skip


def imported(module: str) -> Iterator[str]:
    """Yield the product's modules that a module imports, also within functions and under TYPE_CHECKING.

    The DSL's verbs return each other's classes, a KStream's a KTable and a KTable's a KStream, each in a file of its
    own: in the index of the verbs, what is imported for annotations only does not count. Below it all counts.
    """
    source = MODULES[module]
    package = module.split(".") if source.name == "__init__.py" else module.split(".")[:-1]
    tree = ast.parse(source.read_text())
    if module.startswith("penstock.plugins.dsl.") and source.parent.name == "dsl":
        tree.body = [each for each in tree.body if not is_for_type_checking(each)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in MODULES)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            origin = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                name = f"{origin}.{alias.name}"
                if name in MODULES:
                    yield name
                elif origin in MODULES:
                    yield origin


def is_for_type_checking(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def circle(edges: Mapping[str, set[str]]) -> list[str] | None:
    """Return the modules of one circle, in the order of their imports; None if there is no circle."""
    finished: set[str] = set()
    for start in edges:
        path, pending = [start], [iter(sorted(edges[start]))]
        while path:
            following = next((each for each in pending[-1] if each not in finished), None)
            if following is None:
                finished.add(path.pop())
                pending.pop()
            elif following in path:
                return [*path[path.index(following) :], following]
            else:
                path.append(following)
                pending.append(iter(sorted(edges[following])))
    return None


def test_no_circle_of_files() -> None:
    edges = {module: {each for each in imported(module) if each != module} for module in MODULES}
    found = circle(edges)
    assert found is None, " -> ".join(found)


MOST_ROOMS, MOST_IMPORTS, MOST_LAYERS = 43, 205, 17
"""A room is a file or folder of core or plugins, `stores`, `contrib`, or a door."""
OF_FRAMES = ("penstock.plugins.dsl", "penstock.plugins.testing")
"""`to_pandas` of a KStream and a KTable runs the program in the test driver, which it imports when it is called."""


def room(module: str) -> str:
    parts = module.split(".")
    return ".".join(parts[: 3 if parts[1:2] == ["plugins"] else 2])


def layers(edges: Mapping[str, set[str]]) -> dict[str, int]:
    """Return the layer of each room: 1 for one that imports no other, else one above all that it imports."""
    heights: dict[str, int] = {}

    def height(name: str) -> int:
        if name not in heights:
            heights[name] = 1 + max((height(each) for each in edges[name]), default=0)
        return heights[name]

    return {name: height(name) for name in edges}


def test_rooms_are_few_and_so_are_the_imports_between_them() -> None:
    pairs = {(room(module), room(each)) for module in MODULES for each in imported(module)}
    edges: dict[str, set[str]] = {room(module): set() for module in MODULES if module != "penstock.plugins"}
    for importer, other in pairs - {OF_FRAMES}:
        if importer != other:
            edges[importer].add(other)
    assert OF_FRAMES in pairs
    assert (found := circle(edges)) is None, " -> ".join(found)
    assert len(edges) <= MOST_ROOMS, sorted(edges)
    assert sum(map(len, edges.values())) + 1 <= MOST_IMPORTS, "move a name, or make it public in penstock"
    assert max(layers(edges).values()) <= MOST_LAYERS, sorted(layers(edges).items(), key=lambda each: each[1])


def test_layers_are_counted_from_the_ground() -> None:
    assert layers({"top": {"middle", "ground"}, "middle": {"ground"}, "ground": set()}) == {
        "top": 3,
        "middle": 2,
        "ground": 1,
    }


def private_ways(module: str) -> Iterator[str]:
    """Yield the public names that a module imports from elsewhere than from `penstock`."""
    public = set(penstock.__all__)
    for node in ast.walk(ast.parse(MODULES[module].read_text())):
        if isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").startswith("penstock."):
            origin = importlib.import_module(node.module or "")
            for name in public & {alias.name for alias in node.names}:
                if getattr(origin, name, None) is getattr(penstock, name):
                    yield f"{module}:{node.lineno}: {name} from {node.module}"


def test_public_names_are_imported_from_penstock() -> None:
    above = ("penstock.plugins.", "penstock.stores", "penstock.contrib")
    outside_core = [each for each in MODULES if each.startswith(above)]
    assert len(outside_core) > 400
    assert not [way for each in outside_core for way in private_ways(each)]


def constants(tree: ast.Module) -> Iterator[str]:
    """Yield the names that a module assigns outside of functions, as often as it does."""
    for node in tree.body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        for target in targets:
            yield from (n.id for n in ast.walk(target) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))


def test_a_constant_is_assigned_once() -> None:
    twice: dict[str, int] = {}
    for module, source in MODULES.items():
        counted = Counter(constants(ast.parse(source.read_text())))
        twice |= {f"{module}.{name}": times for name, times in counted.items() if times > 1}
    assert not twice


MOST_LINES = 600


def test_no_file_is_too_large() -> None:
    sizes = {str(source.relative_to(ROOT)): len(source.read_text().splitlines()) for source in MODULES.values()}
    assert not {name: size for name, size in sizes.items() if size > MOST_LINES}


FEWEST_LINES = 60
"""Of a file that only one other file imports."""
SMALL = {
    "penstock.config_sources": "a documented import path",
    "penstock.contrib.debezium.tables": "imports the DSL",
    "penstock.plugins.engine.run.metrics.collector": "imports an optional package",
    "penstock.plugins.operate.cli.warmup": "a verb, which is imported when it is called",
    "penstock.plugins.replicas": "a documented import path",
    "penstock.plugins.runtime.locations": "a documented import path",
}
"""Small files of one reader or none, with the reason."""


def test_a_small_file_has_two_readers() -> None:
    """One that is named in a text is imported when it is first used, and counts as read."""
    readers = Counter(name for module in MODULES for name in {*imported(module)} - {module})
    texts = "\n".join(source.read_text() for source in MODULES.values())
    small = {
        module
        for module, source in MODULES.items()
        if source.stem not in ("__init__", "__main__")
        and "doors" not in source.parts
        and len(source.read_text().splitlines()) < FEWEST_LINES
        and readers[module] < 2
        and not re.search(rf'"{re.escape(module)}[":]', texts)
    }
    assert small == set(SMALL)


CLOCKS = {
    "time": {"time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "localtime", "gmtime"},
    "datetime": {"now", "utcnow", "today"},
    "date": {"today"},
}


def clock_readings(source: Path) -> Iterator[str]:
    """Yield the places of a file that read a clock."""
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "time":
            for alias in node.names:
                if alias.name in CLOCKS["time"]:
                    yield f"{source.relative_to(ROOT)}:{node.lineno}: imports time.{alias.name}"
        elif isinstance(node, ast.Attribute):
            owner = node.value
            name = owner.id if isinstance(owner, ast.Name) else owner.attr if isinstance(owner, ast.Attribute) else ""
            if node.attr in CLOCKS.get(name, ()):
                yield f"{source.relative_to(ROOT)}:{node.lineno}: {name}.{node.attr}"


def test_core_reads_a_clock_in_two_files() -> None:
    core = FOLDERS["penstock"]
    readers = {source.name for source in core.rglob("*.py") if list(clock_readings(source))}
    assert readers == {"clock.py", "world.py"}


TASK_ROOMS = (
    "core",
    "stores",
    "plugins/changelogs",
    "plugins/engine/run/embedded.py",
    "plugins/engine/host",
    "plugins/engine/task",
)
"""What runs tasks gets time, threads and random names from its World."""
OUTSIDE = {
    "time": "*",
    "secrets": "*",
    "uuid": {"getnode", "uuid1", "uuid4"},
    "random": "*",
    "concurrent.futures": {"ThreadPoolExecutor", "ProcessPoolExecutor", "wait", "as_completed"},
    "threading": {"Thread", "Timer"},
}
OF_THIS_MACHINE = {
    "core/clock.py": "the machine's clock, of the real World",
    "core/world/world.py": "the real World",
    "core/world/calls.py": "the threads of functions that wait, of the real World",
    "core/support/file_lock.py": "a lock of the machine's file system",
    "plugins/engine/task/epoch.py": "the name of an epoch, which a start makes",
    "plugins/engine/task/temporary.py": "directories that a killed process leaves to the next one",
    "plugins/engine/run/embedded.py": "the thread of a run",
    "plugins/engine/host/claims.py": "a Spark worker that waits for another executor",
    "plugins/engine/host/client.py": "starts processes and waits for their sockets",
    "plugins/engine/host/continuous_engine.py": "the thread that turns a TaskLoop",
    "plugins/engine/host/place.py": "sockets and locks of a process, and how long it lives",
    "plugins/engine/host/process.py": "a process, its sockets and its signals",
    "plugins/engine/host/reports.py": "memory and CPU of a process",
}
"""Files of these rooms that a simulated world does not run, with the reason."""


def taken_from_outside(source: Path) -> Iterator[str]:
    """Yield what a file takes past its World, as `module.name`."""
    tree = ast.parse(source.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if OUTSIDE.get(alias.name) == "*")
        elif isinstance(node, ast.ImportFrom) and node.module in OUTSIDE:
            names = OUTSIDE[node.module]
            yield from (f"{node.module}.{each.name}" for each in node.names if names == "*" or each.name in names)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module = "concurrent.futures" if node.value.id == "futures" else node.value.id
            names = OUTSIDE.get(module, ())
            if names != "*" and node.attr in names:
                yield f"{module}.{node.attr}"


def test_what_runs_tasks_takes_time_threads_and_random_names_from_its_world() -> None:
    sources = {
        name: source for source in MODULES.values() if (name := str(source.relative_to(ROOT))).startswith(TASK_ROOMS)
    }
    taken = {name: sorted(set(taken_from_outside(source))) for name, source in sources.items()}
    assert {name for name, found in taken.items() if found} == set(OF_THIS_MACHINE), taken


def test_notes_in_the_log_are_in_one_list() -> None:
    """`engine/task/notes.py` has all notes of applications; a lease, logs and what tests these pass bytes on."""
    apart = ("engine.task.notes", "engine.program.lease", "logs.", "testing.")
    use = re.compile(r"\.(get|put|change)_meta\(")
    plugins = {module.removeprefix("penstock.plugins."): source for module, source in MODULES.items()}
    users = {module for module, source in plugins.items() if use.search(source.read_text())}
    assert "engine.task.notes" in users
    assert not {each for each in users if not each.startswith(apart)}


METHODS = (FunctionType, classmethod, staticmethod, property, cached_property)


def methods_without_contract(kind: type) -> Iterator[str]:
    """Yield the public methods of a class that have a docstring neither here nor in a class that they override."""
    for name, method in vars(kind).items():
        if isinstance(method, METHODS) and not name.startswith("_"):
            same = [vars(each).get(name) for each in kind.__mro__]
            if not any(each.__doc__ for each in same if isinstance(each, METHODS)):
                yield f"{kind.__module__}.{kind.__qualname__}.{name}"


def repeated_contracts(kind: type) -> Iterator[str]:
    """Yield the methods of a class whose docstring is the beginning of the docstring that they override."""
    for name, method in vars(kind).items():
        if isinstance(method, METHODS) and method.__doc__:
            above = [vars(each).get(name) for each in kind.__mro__[1:]]
            contract = next((each.__doc__ for each in above if isinstance(each, METHODS) and each.__doc__), "")
            if inspect.cleandoc(contract).startswith(inspect.cleandoc(method.__doc__).rstrip(".")):
                yield f"{kind.__module__}.{kind.__qualname__}.{name}"


def classes() -> Iterator[type]:
    for name in MODULES:
        if not name.endswith("__main__"):
            for each in vars(importlib.import_module(name)).values():
                if inspect.isclass(each) and each.__module__ == name:
                    yield each


_PLACE = re.compile(r"\{[^{}\n]*settings\.(?:log|changelog|data_dir|state_dir|checkpoint_dir)\b[^{}\n]*\}")


def test_a_message_shows_no_location_as_it_is() -> None:
    """It may have a user and a password: a message has `settings.shown("changelog")`."""
    assert _PLACE.search('f"the log {self.application.settings.log!r} is away"')
    for module, source in MODULES.items():
        assert not (found := _PLACE.search(source.read_text())), f"{module}: {found}"


def test_a_contract_stands_once() -> None:
    """A public method has a docstring, and an overriding one only for what it adds."""
    public = [each for each in classes() if not each.__name__.startswith("_")]
    assert not [each for kind in public for each in methods_without_contract(kind)]
    assert not [each for kind in classes() if not issubclass(kind, Enum) for each in repeated_contracts(kind)]


def test_a_missing_and_a_repeated_contract_are_found() -> None:
    class Interface:
        def overridden(self) -> None:
            """Do it."""

        def repeated(self) -> None:
            """Do it. Raises nothing."""

    class Implementation(Interface):
        def overridden(self) -> None: ...

        def repeated(self) -> None:
            """Do it."""

        @property
        def own(self) -> None: ...

    found = list(methods_without_contract(Implementation))
    assert [each.rpartition(".")[2] for each in found] == ["own"]
    assert [each.rpartition(".")[2] for each in repeated_contracts(Implementation)] == ["repeated"]


def silent_assertions(source: str) -> list[int]:
    """Return the lines of assertions without a message."""
    return [node.lineno for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Assert) and node.msg is None]


def test_what_tests_users_code_says_what_is_wrong() -> None:
    """Assertions of the suites and of the simulator have a message: pytest shows no values for installed code."""
    testing = {module: source for module, source in MODULES.items() if module.startswith("penstock.plugins.testing.")}
    assert len(testing) > 40
    assert not {module: lines for module, source in testing.items() if (lines := silent_assertions(source.read_text()))}
    assert silent_assertions("assert found, 'nothing'\nassert found") == [2]


def test_make_quick_needs_no_spark() -> None:
    """What it runs imports neither Spark nor a client of Kafka."""
    quick = re.search(r"^QUICK := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert quick is not None
    sources = [each for folder in quick[1].split() for each in (ROOT / folder).rglob("*.py")]
    assert len(sources) > 50
    heavy = re.compile(r"^\s*(from|import) (pyspark|confluent_kafka|penstock\.plugins\.spark)", re.MULTILINE)
    assert not [str(each.relative_to(ROOT)) for each in sources if heavy.search(each.read_text())]
