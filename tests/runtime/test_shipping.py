"""What is packed can be unpacked where only penstock is installed."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from functools import partial
from importlib.metadata import version
from pathlib import Path

import pytest

from penstock import Application, ConfigError, RuntimeUnavailableError, Topology
from penstock.dsl import StreamsBuilder
from penstock.plugins.engine.task.shipping import check_packages, pack, packages_of
from penstock.plugins.serdes.of import of
from penstock.plugins.serdes.registry.avro import AvroSerde
from penstock.support.packages import DISTRIBUTION

from ..serdes import typed_values
from ..spark import apps


def test_an_application_of_modules_that_are_not_installed_unpacks_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "packed").write_bytes(pack(Application("app", apps.count_by_value())))
    program = (
        "import pickle, pathlib\n"
        "application = pickle.loads(pathlib.Path('packed').read_bytes())\n"
        "node = application.program.nodes['count']\n"
        "print(application.id, node.supplier().__class__.__qualname__)\n"
    )
    answer = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert answer.stdout == "app Count\n", answer.stderr


def test_a_program_with_functions_is_packed() -> None:
    topology = Topology().add_source("in", "in").add_processor("sum", lambda: apps.Count(), "in")
    application = pickle.loads(pack(Application("app", topology)))
    assert application.program.describe() == topology.build().describe()
    assert isinstance(application.program.nodes["sum"].supplier(), apps.Count)


def test_functions_keep_the_names_of_their_files() -> None:
    """Messages of task hosts name a user's own line, also where the module goes along by value."""
    topology = Topology().add_source("in", "in").add_processor("sum", lambda: apps.Count(), "in")
    supplier = pickle.loads(pack(Application("app", topology))).program.nodes["sum"].supplier
    assert supplier.__code__.co_filename == __file__


def test_what_cannot_be_packed_is_explained() -> None:
    application = Application("app", apps.count(apps.DiesOnce, flag=threading.Lock()))
    with pytest.raises(ConfigError, match=r"cannot be sent to its task hosts.*lock.*in a processor's init"):
        pack(application)


GUARDS = {"door": [threading.Lock()]}


class Guarded:
    def __init__(self) -> None:
        self.guard = GUARDS["door"]

    def opens(self, value: str) -> bool:
        return bool(self.guard)


def test_what_cannot_be_packed_is_named_with_the_way_to_it() -> None:
    def by_global(value: str) -> bool:
        return bool(GUARDS)

    def by_variable(value: str, guarded: Guarded | None) -> bool:
        return bool(guarded_here)

    guarded_here = Guarded()
    module = __name__
    for predicate, way in (
        (by_global, rf"GUARDS in .*by_global of {module} > 'door' > \[0\]"),
        (partial(by_variable, guarded=None), "guarded_here in .* > guard > \\[0\\]"),
        (Guarded().opens, "guard > \\[0\\]"),
    ):
        builder = StreamsBuilder()
        builder.stream("in").filter(predicate).to("out")
        with pytest.raises(ConfigError, match=rf"task hosts \(processor '\S+' > .*{way}\): TypeError"):
            pack(Application("app", builder))


def test_applications_can_be_packed_by_several_threads_at_once() -> None:
    application = Application("app", apps.count_by_value())
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            packed = list(threads.map(lambda _: pack(application), range(40)))
    finally:
        sys.setswitchinterval(interval)
    assert len(packed) == 40


def test_types_of_values_arrive_with_their_fields_where_their_module_is_not(tmp_path: Path) -> None:
    """Their annotations are text that names what the module imports; a Struct's fields do not travel."""
    for name, serde in (("order", of(typed_values.Order)), ("visit", of(typed_values.Visit))):
        (tmp_path / name).write_bytes(pack(serde))
    (tmp_path / "struct").write_bytes(pack(of(typed_values.Payment)))
    program = (
        "import pickle, pathlib\n"
        "order, visit = (pickle.loads(pathlib.Path(each).read_bytes()) for each in ('order', 'visit'))\n"
        'print(visit.deserialize(b\'{"who": {"name": "anna"}, "at": 1}\').who.name)\n'
        'print(order.deserialize(b\'{"id": "00000000-0000-0000-0000-000000000001", "day": "2024-02-29", \'\n'
        '    b\'"lines": [{"sku": "tea", "price": "1.50"}]}\').lines)\n'
        "try:\n    pickle.loads(pathlib.Path('struct').read_bytes())\n"
        "except Exception as error:\n    print(type(error).__name__, error)\n"
    )
    answer = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert answer.stdout.splitlines()[:2] == ["anna", "[Line(sku='tea', price=Decimal('1.50'), count=1)]"], (
        answer.stderr
    )
    assert "ConfigError serde 'of(Payment)': the class Payment was sent" in answer.stdout


def test_a_class_whose_values_were_converted_is_packed_again(tmp_path: Path) -> None:
    """msgspec keeps in a class what it knows of its fields, and that cannot be pickled."""
    schema = """{"type": "record", "name": "Line", "fields": [{"name": "sku", "type": "string"},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "count", "type": "long"}]}"""
    serde = AvroSerde(schema, typed_values.Line, registry="mock://packed")
    data = serde.serialize(typed_values.Line("tea", Decimal("1.50")))
    assert serde.deserialize(data).sku == "tea"
    (tmp_path / "packed").write_bytes(pack((typed_values.Line, serde)))
    program = (
        "import pickle, pathlib\nfrom decimal import Decimal\n"
        "line, serde = pickle.loads(pathlib.Path('packed').read_bytes())\n"
        "print(serde.deserialize(serde.serialize(line('tea', Decimal('1.50'), 2))))\n"
    )
    answer = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert answer.stdout == "Line(sku='tea', price=Decimal('1.50'), count=2)\n", answer.stderr


def test_packages_of_another_version_are_named_with_the_machine() -> None:
    packages = packages_of(pack(Application("app", apps.count_by_value())))
    assert packages == {DISTRIBUTION: version(DISTRIBUTION)}
    check_packages(tuple(packages.items()), "executor 7 on node-1")
    here = re.escape(packages[DISTRIBUTION])
    with pytest.raises(
        RuntimeUnavailableError, match=f"^executor 7 on node-1 has version {here} of {DISTRIBUTION}, .*0.7"
    ):
        check_packages(((DISTRIBUTION, "0.7"),), "executor 7 on node-1")
    with pytest.raises(RuntimeUnavailableError, match="has no penstock-acme, and the driver has version 1: install"):
        check_packages((("penstock-acme", "1"),), "executor 7 on node-1")
