"""The modules of a program that is not installed are there once in a task host, under their own names."""

from __future__ import annotations

import importlib
import os
import pickle
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

from penstock import Application, run
from penstock.plugins.engine.host.client import HostAnswer
from penstock.plugins.engine.task.shipping import Arrived, pack
from penstock.plugins.testing.driver import TopologyTestDriver

from ..spark.surroundings import Surroundings

VALUES = """
import threading
from dataclasses import dataclass, field
from enum import Enum
from functools import cache, lru_cache


class Kind(Enum):
    SMALL = 1
    LARGE = 2


@dataclass
class Basket:
    items: list = field(default_factory=list)
    kind: Kind = Kind.SMALL


class Wrong(Exception):
    pass


@lru_cache(maxsize=10)
def empty(kind):
    return Basket([], kind)


@cache
def steps(number):
    return 0 if number == 0 else steps(number - 1) + 1


RATES = {"tea": 3}
LOCK = threading.Lock()  # this cannot be pickled


def named_later():
    return RATES, Basket
"""

PROGRAM = """
from penstock.dsl import StreamsBuilder


from .values import Basket, Kind, empty, steps


def add(basket, item):
    import shop_of_own.values as again
    from .values import Basket as Later, named_later

    assert isinstance(basket, Basket), "another class of this name"
    assert Later is Basket is again.Basket, "another module of this name"
    assert named_later()[1] is Basket, "a function of another module of this name"
    assert basket.kind is (Kind.LARGE if basket.items else Kind.SMALL), "another enum of this name"
    named_later()[0]["tea"] += 1
    assert again.RATES["tea"] == named_later()[0]["tea"]
    return Basket([*basket.items, item], Kind.LARGE)


def text(basket):
    return f"{len(basket.items)} {steps(2)}"


builder = StreamsBuilder()
baskets = builder.stream("in").group_by_key().aggregate(lambda: empty(Kind.SMALL), add, "baskets", value_serde="pickle")
baskets.to_stream().map_values(text).to("out")
"""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    package = tmp_path / "programs" / "shop_of_own"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "values.py").write_text(VALUES)
    (package / "program.py").write_text(PROGRAM)
    monkeypatch.syspath_prepend(str(package.parent))
    for name in [name for name in sys.modules if name.partition(".")[0] == "shop_of_own"]:
        monkeypatch.delitem(sys.modules, name)
    return importlib.import_module("shop_of_own.program")


@pytest.mark.parametrize("reopen", [False, True])
def test_values_of_own_classes_are_kept_in_the_driver(shop: Any, reopen: bool) -> None:
    with TopologyTestDriver(shop.builder, reopen_tasks=reopen) as driver:
        for item in ("tea", "mug"):
            driver.pipe("in", "ann", item)
        assert driver.read_values("out") == ["1 2", "2 2"]
        assert driver.store("baskets").get("ann").value == shop.Basket(["tea", "mug"], shop.Kind.LARGE)
        assert sys.modules["shop_of_own.program"] is shop


@pytest.mark.parametrize("is_found", [False, True], ids=["elsewhere", "where the program is found"])
def test_values_of_own_classes_are_kept_in_task_hosts(
    shop: Any, is_found: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path / "programs" if is_found else tmp_path)
    with Surroundings(tmp_path / "data") as surroundings:
        surroundings.create(**{"in": 2, "out": 2})
        application = surroundings.application("app", shop.builder, engine="embedded", processes=2)
        for item in ("tea", "mug"):
            surroundings.put("in", [(name, item, 1) for name in ("ann", "bob", "eve")])
            run(application)
        assert surroundings.values_by_key("out") == {name: ["1 2", "2 2"] for name in ("ann", "bob", "eve")}


def test_what_was_not_sent_is_taken_from_its_file_with_what_was(shop: Any) -> None:
    """So a value of a class that no function names can be read on the machine of the program."""
    arrived = Arrived(pack(Application("app", shop.builder)), is_apart=True)
    with arrived.in_place():
        values = sys.modules["shop_of_own.values"]
        assert values.Basket is not shop.Basket
        assert pickle.loads(pickle.dumps(values.Wrong("it"))).args == ("it",)
        assert values.named_later()[1] is values.Basket
        assert type(HostAnswer.of_error(values.Wrong("it")).error).__name__ == "PenstockError"
        with pytest.raises(AttributeError, match=r"'shop_of_own.values' was sent .*'nowhere' is not among it"):
            _ = values.nowhere
    assert importlib.import_module("shop_of_own.values").Basket is shop.Basket


def test_a_module_may_have_a_dotted_name_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a loader of files may name it."""
    file = tmp_path / "alone.py"
    file.write_text("def shout(value):\n    return value.upper()\n")
    spec = spec_from_file_location("nowhere.alone", file)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "nowhere.alone", module)
    spec.loader.exec_module(module)
    assert Arrived(pack(module.shout), is_apart=True).cargo("tea") == "TEA"


def test_a_script_is_the_main_module_of_its_hosts(tmp_path: Path) -> None:
    script = (
        "import pickle, subprocess, sys\n"
        "from collections import namedtuple\n"
        "from penstock.plugins.engine.task.shipping import pack\n"
        "Point = namedtuple('Point', 'x y')\n"
        "def moved(point):\n"
        "    return pickle.loads(pickle.dumps(Point(point.x + 1, point.y)))\n"
        "if __name__ == '__main__':\n"
        "    sys.stdout.buffer.write(pack([moved, Point(1, 2)]))\n"
    )
    (tmp_path / "script.py").write_text(script)
    read = (
        "import sys\n"
        "from penstock.plugins.engine.task.shipping import unpack\n"
        "moved, point = unpack(sys.stdin.buffer.read())\n"
        "print(moved(point), type(moved(point)) is type(point))\n"
    )
    surroundings = os.environ | {"PYTHONPATH": ""}
    packed = subprocess.check_output([sys.executable, "script.py"], cwd=tmp_path, env=surroundings)
    answer = subprocess.check_output([sys.executable, "-c", read], input=packed, cwd=tmp_path, env=surroundings)
    assert answer.decode() == "Point(x=2, y=2) True\n"
