"""MODULE:ATTR: what it finds, and what it says when it does not."""

from __future__ import annotations

import pytest

from penstock.errors import TopologyError
from penstock.plugins.operate.cli.failures import ApplicationError
from penstock.plugins.operate.cli.target import load_application, load_program
from penstock.settings.application import Application

from .console import Console

PIPE = """
from penstock import Application, Processor, Topology

class Copy(Processor):
    def init(self, context):
        self.context = context

    def process(self, record):
        self.context.forward(record)

def topology():
    return Topology().add_source("in", "lines").add_processor("copy", Copy, "in").add_sink("out", "copies", "copy")

application = Application("pipe", topology(), value_serde="json", user={"a": 1, "b": 2})
bare = topology()
number = 5

def make():
    return application

def takes(limit):
    return application

def takes_nothing_needed(limit=3):
    return application

def nothing():
    return None

def breaks():
    raise KeyError("no such thing")
"""


@pytest.fixture
def pipe(console: Console) -> Console:
    console.write("pipe.py", PIPE)
    return console


@pytest.mark.parametrize(
    "target", ["pipe:application", "pipe.py:application", "./pipe.py:make", "pipe:takes_nothing_needed"]
)
def test_applications_and_functions_that_return_one_are_found(pipe: Console, target: str) -> None:
    assert load_application(target).id == "pipe"


def test_an_absolute_path_outside_the_directory_is_found(pipe: Console) -> None:
    path = pipe.write("elsewhere/01_elsewhere.py", PIPE)
    assert load_application(f"{path}:application").id == "pipe"


def test_a_file_of_a_package_is_imported_as_part_of_it(pipe: Console) -> None:
    pipe.write("shop/__init__.py", "")
    pipe.write("shop/names.py", "ID = 'shop-pipe'")
    pipe.write(
        "shop/app.py",
        "from penstock import Application\nfrom pipe import topology\nfrom .names import ID\napplication = "
        "Application(ID, topology())\n",
    )
    assert load_application("shop/app.py:application").id == "shop-pipe"
    assert load_application("shop.app:application").id == "shop-pipe"


def test_a_topology_gets_its_id_from_the_command_line(pipe: Console) -> None:
    assert load_application("pipe:bare", {"application_id": "other"}).id == "other"
    assert load_application("pipe:topology", {"application_id": "other"}).id == "other"
    with pytest.raises(ApplicationError, match="--application-id"):
        load_application("pipe:bare")


def test_a_topology_needs_no_id_to_be_described(pipe: Console) -> None:
    assert [each.name for each in load_program("pipe:topology").subtopologies[0].nodes] == ["in", "copy", "out"]


def test_another_id_keeps_the_settings(pipe: Console) -> None:
    renamed = load_application("pipe:application", {"application_id": "second"})
    assert (renamed.id, renamed.settings.value_serde) == ("second", "json")


def test_settings_replace_those_of_the_application_and_user_settings_add_to_them(pipe: Console) -> None:
    found = load_application("pipe:application", {"log": "local:there", "user": {"b": 3}})
    assert isinstance(found, Application)
    assert found.settings.log == "local:there"
    assert found.settings.value_serde == "json"
    assert found.settings.user == {"a": 1, "b": 3}


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("pip_:application", "there is no module 'pip_' in .* Did you mean 'pipe'"),
        ("pipe.inner:application", "there is no module 'pipe.inner' in 'pipe'"),
        ("pipes.py:application", r"there is no file 'pipes\.py'\. Did you mean 'pipe\.py'"),
        ("nowhere/pipe.py:application", "there is no file 'nowhere/pipe.py'"),
        ("pipe:aplication", "module 'pipe' has no attribute 'aplication'. Did you mean 'application'"),
        ("pipe:aplication", r"In it: pipe:application \(Application\), pipe:bare \(Topology\)"),
        ("pipe", r"names no attribute.* In it: pipe:application \(Application\), pipe:bare \(Topology\)"),
        (":application", "expected MODULE:ATTR"),
        ("pipe:number", "pipe:number is of type int; expected an Application"),
        ("pipe:Copy", "is the class Copy; expected an Application"),
        ("pipe:takes", r"needs arguments \(limit\)"),
        ("pipe:nothing", r"pipe:nothing\(\) returned None"),
        ("pipe:breaks", r"calling pipe:breaks\(\) failed: KeyError: 'no such thing' \(.*pipe.py, line 31\)"),
    ],
)
def test_what_cannot_be_found_is_said(pipe: Console, target: str, message: str) -> None:
    with pytest.raises(ApplicationError, match=message):
        load_application(target)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import os\n1/0\n", r"importing broken failed: ZeroDivisionError: division by zero \(.*broken.py, line 2\)"),
        (
            "import not_installed_here\n",
            r"importing broken failed: ModuleNotFoundError: .*not_installed_here.*broken.py, line 1",
        ),
        ("x = (\n", r"importing broken failed: SyntaxError: .*broken.py, line 1"),
        ("import sys\nsys.exit(3)\n", "importing broken failed: SystemExit: 3"),
    ],
)
def test_an_error_inside_the_module_is_told_from_a_missing_module(console: Console, text: str, message: str) -> None:
    console.write("broken.py", text)
    with pytest.raises(ApplicationError, match=message):
        load_application("broken:application")


def test_the_programs_own_mistake_keeps_its_message(console: Console) -> None:
    console.write("wrong.py", "from penstock import Topology\nTopology().add_source('in', 'a').add_source('in', 'b')\n")
    with pytest.raises(TopologyError, match="'in'"):
        load_application("wrong:application")


def test_a_file_whose_name_is_taken_says_so(console: Console) -> None:
    console.write("colorsys.py", "application = 1\n")
    import colorsys

    assert colorsys
    with pytest.raises(ApplicationError, match=r"its name 'colorsys' is taken by .*colorsys.py; rename the file"):
        load_application("colorsys.py:application")


OWN_LINES = {
    "a topology at import": ("topology = Topology()\ntopology.add_source('in')\n", "expected topics or a pattern", 4),
    "a topology in a function": (
        "def topology():\n    made = Topology()\n    return made.add_sink('out', 'out', 'gone')\n",
        "its parent 'gone' is not in the topology",
        5,
    ),
    "a factory": (
        "def make():\n    return 1 / 0\ntopology = Topology().add_source('in', 'in').add_processor('p', make, 'in')\n",
        "its supplier raised ZeroDivisionError",
        4,
    ),
    "a verb that there is not": ("topology = StreamsBuilder()\ntopology.stream('in').nosuch()\n", "'nosuch'", 4),
    "a setting": (
        "topology = Application('shop', Topology().add_source('in', 'in'), comit_interval='1s')\n",
        "did you mean 'commit_interval'",
        3,
    ),
}


@pytest.mark.parametrize("case", OWN_LINES)
def test_an_error_of_the_program_names_the_users_own_line(console: Console, case: str) -> None:
    text, message, line = OWN_LINES[case]
    imports = "from penstock import Application, Topology\nfrom penstock.plugins.dsl import StreamsBuilder\n"
    name = f"own_{list(OWN_LINES).index(case)}"
    console.write(f"{name}.py", imports + text)
    err = console("describe", f"{name}:topology", code=2).stderr
    assert message in err and f"({name}.py, line {line})" in err
