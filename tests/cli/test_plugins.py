"""`penstock plugins`."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.metadata import version

import pytest

from penstock.errors import PluginError
from penstock.hooks import Components, Registry, hookimpl
from penstock.support.packages import DISTRIBUTION

from .console import Console, install


def test_our_own_come_in_by_the_same_door(console: Console) -> None:
    found = console.json("plugins", "--json")
    assert found["broken"] == []
    by_name = {(each["kind"], each["name"]): each for each in found["components"]}
    assert by_name["log", "local"]["package"] == DISTRIBUTION
    assert by_name["log", "local"]["version"] == version(DISTRIBUTION)
    assert by_name["command", "consume"]["target"] == "penstock.plugins.operate.cli.topics:consume"
    assert ("serde", "json") in by_name


def test_the_table(console: Console) -> None:
    lines = console("plugins").stdout.splitlines()
    assert re.fullmatch(r"KIND +NAME +PACKAGE +VERSION", lines[0])
    assert any(re.fullmatch(rf"command +run +{DISTRIBUTION} +\S+", line) for line in lines)


def test_one_kind(console: Console) -> None:
    kinds = {each["kind"] for each in console.json("plugins", "--kind", "serde", "--json")["components"]}
    assert kinds == {"serde"}
    assert (
        "--kind 'serdes': expected one of 'processor', 'store backend', 'store kind', 'serde'"
        in console("plugins", "--kind", "serdes", code=2).stderr
    )


def test_all_of_ours_can_be_loaded(console: Console) -> None:
    assert console.json("plugins", "--check", "--json")["broken"] == []


def test_plugins_of_others_are_listed_and_checked(console: Console) -> None:
    environment = install(
        console,
        "acme",
        "@hookimpl\ndef penstock_serdes():\n    return {'acme.fine': 'acme.serdes:Fine', 'acme.gone': "
        "'acme.serdes:Gone'}\n",
        serdes="from penstock.serde import BytesSerde as Fine\n",
    )
    out, err = console.apart("plugins", environment=environment)
    assert re.search(r"^serde +acme.fine +acme +1.5$", out, re.MULTILINE)
    assert re.search(r"^serde +acme.gone +acme +1.5$", out, re.MULTILINE)
    assert err == ""
    _, err = console.apart("plugins", "--kind", "serde", "--check", code=1, environment=environment)
    assert re.search(r"^broken: acme 1.5 \(serde acme.gone\): .*cannot be loaded.*AttributeError", err)
    assert "acme.fine" not in err


class One:
    @hookimpl
    def penstock_serdes(self) -> Components:
        return {"acme.same": "one:Serde", "acme.one": "one:Serde"}


class Two:
    @hookimpl
    def penstock_serdes(self) -> Components:
        return {"acme.same": "two:Serde", "acme-two.two": "two:Serde"}

    @hookimpl
    def penstock_logs(self) -> Components:
        raise ValueError("not today")


def test_a_name_of_two_packages_is_guessed_to_be_neither() -> None:
    registry = Registry([("one", "acme-one", "1", One()), ("two", "acme-two", "2", Two())], {})
    with pytest.raises(PluginError, match="serde 'acme.same' comes from two packages, acme-one and acme-two"):
        registry.find("serde", "acme.same")
    assert registry.find("serde", "acme.one").package == "acme-one"
    assert registry.find("serde", "acme-two.two").package == "acme-two"
    assert registry.broken == {
        "acme-two 2 (two: serde acme.same)": "serde 'acme.same' comes from two packages, acme-one and acme-two: "
        "uninstall one of them",
        "acme-two 2 (two: penstock_logs)": "ValueError: not today",
    }


# ---------------------------------------------------------------- mistakes of plugin authors

SERDES = """
from penstock import Serde, StrSerde

class Fine(StrSerde):
    pass

class Abstract(Serde):
    pass

def needs_a_number(number, unit):
    return StrSerde()

def makes_text():
    return "a serde"

a_dictionary = {}

class OfOne:
    def __init__(self, directory):
        pass

class OfTwo:
    def __init__(self, location, settings):
        pass

class OfThree:
    def __init__(self, spec, bytes_store, context):
        pass

class Unpicklable(StrSerde):
    def __init__(self):
        self._encode = lambda value: value.encode()
"""

PROCESSORS = """
from penstock import Processor, key_value_store

def makes_text():
    return "a processor"

def makes_one():
    return made

def renders_nothing(program):
    pass

class Plain(Processor):
    def stores(self):
        return [key_value_store("seen")]
    def process(self, record):
        pass

class Text(Processor):
    @classmethod
    def stores(cls):
        return "seen"
    def process(self, record):
        pass

class WithOptions(Processor):
    @classmethod
    def stores(cls, window):
        return [key_value_store("seen")]
    def __init__(self, window):
        pass
    def process(self, record):
        pass

class WithStores(Processor):
    def __init__(self, stores):
        pass
    def process(self, record):
        pass

made = WithOptions("1h")
"""

BACKENDS = """
def opens_nothing(directory, stores, *, read_only=False):
    return {}

def fails(directory, stores, *, read_only=False):
    raise OSError("no such engine")
"""


def hook(kind: str, returned: str) -> str:
    return f"@hookimpl\ndef penstock_{kind}():\n    return {returned}\n\n"


MISTAKES: dict[str, tuple[str, str, str]] = {
    "hookimpl is missing": (
        hook("serdes", "{}").removeprefix("@hookimpl\n"),
        "acme 1.5 (acme)",
        "its function penstock_serdes is not marked as a hook: write @hookimpl above it (penstock.hooks)",
    ),
    "hookimpl is missing, and the name is wrong": (
        "def penstock_serde():\n    return {}\n",
        "acme 1.5 (acme)",
        "its function penstock_serde, if it is meant to be penstock_serdes, is not marked as a hook: write @hookimpl",
    ),
    "the name of a hook is wrong": (
        "@hookimpl\ndef penstock_serde():\n    return {}\n",
        "acme 1.5 (acme)",
        "there is no hook penstock_serde; did you mean penstock_serdes? (see penstock.hooks)",
    ),
    "there is no hook": (
        "def serdes():\n    return {}\n",
        "acme 1.5 (acme)",
        "'acme.plugin' has no hook: the entry point has to name the module whose functions are marked with @hookimpl",
    ),
    "a list": (
        hook("serdes", "['acme.fine']"),
        "acme 1.5 (acme: penstock_serdes)",
        "penstock_serdes returned list, expected a mapping like {'acme.NAME': 'package.module:attribute'}",
    ),
    "a name that is none": (
        hook("serdes", "{3: 'acme.serdes:Fine'}"),
        "acme 1.5 (acme: serde 3)",
        "penstock_serdes returned the name 3, expected text, in a mapping like {'acme.NAME': ",
    ),
    "a place without a colon": (
        hook("serdes", "{'acme.fine': 'acme.serdes.Fine'}"),
        "acme 1.5 (acme: serde acme.fine)",
        "penstock_serdes returned 'acme.serdes.Fine' for 'acme.fine', expected the thing itself or where it is, as in "
        "{'acme.NAME': 'package.module:attribute'}",
    ),
    "a name without prefix": (
        hook("serdes", "{'fine': 'acme.serdes:Fine'}"),
        "acme 1.5 (acme: serde fine)",
        "a name of another package begins with the package's name and a dot: call it acme.fine",
    ),
    "a built-in name": (
        hook("serdes", "{'json': 'acme.serdes:Fine'}"),
        "acme 1.5 (acme: serde json)",
        "it is the name of penstock's own, which stays in use: call it acme.json",
    ),
    "a serde that cannot be called": (
        hook("serdes", "{'acme.fine': 'acme.serdes:a_dictionary'}"),
        "acme 1.5 (serde acme.fine)",
        "serde 'acme.fine' of package acme 1.5 is {}, which cannot be called: name its class, or a function",
    ),
    "a serde with arguments": (
        hook("serdes", "{'acme.fine': 'acme.serdes:needs_a_number'}"),
        "acme 1.5 (serde acme.fine)",
        "serde 'acme.fine' of package acme 1.5: it cannot be called with (): missing a required argument: 'number'; a "
        "serde is made without arguments",
    ),
    "a serde that cannot be sent to workers": (
        hook("serdes", "{'acme.fine': 'acme.serdes:Unpicklable'}"),
        "acme 1.5 (serde acme.fine)",
        "serde 'acme.fine' of package acme 1.5: it cannot be pickled, and it is sent to Spark's workers: ",
    ),
    "a serde that is none": (
        hook("serdes", "{'acme.fine': 'acme.serdes:makes_text'}"),
        "acme 1.5 (serde acme.fine)",
        "serde 'acme.fine' of package acme 1.5: it made 'a serde', expected a penstock.Serde",
    ),
    "an abstract serde": (
        hook("serdes", "{'acme.fine': 'acme.serdes:Abstract'}"),
        "acme 1.5 (serde acme.fine)",
        "serde 'acme.fine' of package acme 1.5: class Abstract is abstract; write its method deserialize, serialize",
    ),
    "a backend that cannot be called": (
        hook("store_backends", "{'acme.disk': 'acme.serdes:a_dictionary'}"),
        "acme 1.5 (store backend acme.disk)",
        "store backend 'acme.disk' of package acme 1.5 is {}, which cannot be called: name its class, or a function",
    ),
    "a backend that is none": (
        hook("store_backends", "{'acme.disk': 'acme.serdes:Fine'}"),
        "acme 1.5 (store backend acme.disk)",
        "store backend 'acme.disk' of package acme 1.5: class Fine is not derived from penstock.StoreBackend",
    ),
    "a backend function that returns something else": (
        hook("store_backends", "{'acme.disk': 'acme.backends:opens_nothing'}"),
        "acme 1.5 (store backend acme.disk)",
        "store backend 'acme.disk' of package acme 1.5: it opened {}, expected a penstock.StoreBackend",
    ),
    "a backend that cannot be opened": (
        hook("store_backends", "{'acme.disk': 'acme.backends:fails'}"),
        "acme 1.5 (store backend acme.disk)",
        "store backend 'acme.disk' of package acme 1.5: calling it raised OSError: no such engine",
    ),
    "a changelog of neither type": (
        hook("changelogs", "{'acme.history': 'acme.serdes:Fine'}"),
        "acme 1.5 (changelog acme.history)",
        "changelog 'acme.history' of package acme 1.5: class Fine is derived neither from penstock.DeltaChangelog nor "
        "from penstock.LogChangelog",
    ),
    "a renderer that renders nothing": (
        hook("renderers", "{'acme.none': 'acme.processors:renders_nothing'}"),
        "acme 1.5 (renderer acme.none)",
        "renderer 'acme.none' of package acme 1.5: it returned NoneType for a program, expected text",
    ),
    "a factory that makes no processor": (
        hook("processors", "{'acme.pass': 'acme.processors:makes_text'}"),
        "acme 1.5 (processor acme.pass)",
        "processor 'acme.pass' of package acme 1.5: called without options: its supplier made 'a processor', which is neither a Processor nor",
    ),
    "a factory that makes one processor": (
        hook("processors", "{'acme.pass': 'acme.processors:makes_one'}"),
        "acme 1.5 (processor acme.pass)",
        "processor 'acme.pass' of package acme 1.5: called without options: its supplier returned the same object twice",
    ),
    "a processor that is an instance": (
        hook("processors", "{'acme.pass': 'acme.processors:made'}"),
        "acme 1.5 (processor acme.pass)",
        "which cannot be called: name its class, or a function",
    ),
    "a parameter that cannot be given": (
        hook("processors", "{'acme.pass': 'acme.processors:WithStores'}"),
        "acme 1.5 (processor acme.pass)",
        "processor 'acme.pass' of package acme 1.5: its parameter 'stores' is an argument of the node itself",
    ),
    "stores that are no class method": (
        hook("processors", "{'acme.pass': 'acme.processors:Plain'}"),
        "acme 1.5 (processor acme.pass)",
        "processor 'acme.pass' of package acme 1.5: its class: Plain.stores declares the stores that its processors bring, and is "
        "a @classmethod",
    ),
    "stores that are none": (
        hook("processors", "{'acme.pass': 'acme.processors:Text'}"),
        "acme 1.5 (processor acme.pass)",
        "processor 'acme.pass' of package acme 1.5: called without options: Text.stores returned 'seen', expected a list of declared stores",
    ),
    "hooks that import pyspark": (
        "import pyspark\n" + hook("processors", "{'acme.pass': 'acme.processors:WithOptions'}"),
        "acme 1.5 (acme)",
        "its module acme.plugin imports pyspark, and it is imported whenever any plugin is looked up: name components "
        "as 'package.module:attribute'",
    ),
    "hooks that print": (
        "print('hello')\n" + hook("processors", "{'acme.pass': 'acme.processors:WithOptions'}"),
        "acme 1.5 (acme)",
        "its module acme.plugin prints when it is imported: 'hello'",
    ),
    "a processor that is none": (
        hook("processors", "{'acme.pass': 'acme.serdes:Fine'}"),
        "acme 1.5 (processor acme.pass)",
        "processor 'acme.pass' of package acme 1.5: its class: class Fine is neither a Processor nor a ValueTransformer",
    ),
    "a log that takes no settings": (
        hook("logs", "{'acme.log': 'acme.serdes:makes_text'}"),
        "acme 1.5 (log acme.log)",
        "log 'acme.log' of package acme 1.5: it cannot be called with (location, settings): too many positional",
    ),
    "a class of another kind as a serde": (
        hook("serdes", "{'acme.wrong': 'acme.serdes:OfOne'}"),
        "acme 1.5 (serde acme.wrong)",
        "serde 'acme.wrong' of package acme 1.5: class OfOne is not derived from penstock.Serde",
    ),
    "a class of another kind as a store kind": (
        hook("store_kinds", "{'acme.wrong': 'acme.serdes:OfThree'}"),
        "acme 1.5 (store kind acme.wrong)",
        "store kind 'acme.wrong' of package acme 1.5: class OfThree is not derived from penstock.StateStore",
    ),
    "a class of another kind as a log": (
        hook("logs", "{'acme.wrong': 'acme.serdes:OfTwo'}"),
        "acme 1.5 (log acme.wrong)",
        "log 'acme.wrong' of package acme 1.5: class OfTwo is not derived from penstock.Log",
    ),
    "a vocabulary that is none": (
        hook("settings_vocabularies", "{'acme': 'acme.serdes:a_dictionary'}"),
        "acme 1.5 (settings vocabulary acme)",
        "settings vocabulary 'acme' of package acme 1.5: it is {}, and a Vocabulary has knows, names, owner, prefixes",
    ),
    "a command that is none": (
        hook("cli_commands", "{'acme': 'acme.serdes:makes_text'}"),
        "acme 1.5 (command acme)",
        "command 'acme' of package acme 1.5: expected a click command, found <function makes_text",
    ),
}  # fmt: skip


def test_check_finds_each_mistake_and_says_what_to_do(console: Console) -> None:
    """All in one process: each package is one mistake, and starting Python takes longer than finding them."""
    for number, (plugin, _, _) in enumerate(MISTAKES.values()):
        name = f"acme{number}"
        environment = install(
            console, name, plugin.replace("acme", name), serdes=SERDES, processors=PROCESSORS, backends=BACKENDS
        )
    out, _ = console.apart("plugins", "--check", "--json", code=1, environment=environment)
    found = {each["plugin"]: each["error"] for each in json.loads(out)["broken"]}
    for number, (case, (_, plugin, message)) in enumerate(MISTAKES.items()):
        said = found.pop(plugin.replace("acme", f"acme{number}"), None)
        assert said is not None and message.replace("acme", f"acme{number}") in said, (case, said)
    assert not found, "one message for each mistake"


def test_check_finds_plugins_in_another_group(console: Console) -> None:
    """All in one process, as above; nothing says that the last one has to do with penstock."""
    groups = dict(enumerate(["penstocks", "penstock.plugins", "Penstock", "penstok", "other"]))
    for number, group in groups.items():
        name = f"acme{number}"
        environment = install(console, name, hook("serdes", f"{{'{name}.fine': '{name}.serdes:Fine'}}"), serdes=SERDES)
        console.write(f"site/{name}-1.5.dist-info/entry_points.txt", f"[{group}]\n{name} = {name}.plugin\n")
    assert "acme" not in console.apart("plugins", environment=environment)[0]

    def check_that_all_are_found() -> None:
        _, err = console.apart("plugins", "--check", code=1, environment=environment)
        assert sorted(line for line in err.splitlines() if line.startswith("broken: ")) == [
            f"broken: acme{number} 1.5 (acme{number}): its entry point acme{number} = acme{number}.plugin is in the "
            f"group '{group}', which nobody reads: write it in the group 'penstock' "
            "([project.entry-points.penstock] in pyproject.toml) and install the package again"
            for number, group in groups.items()
        ]

    last = groups.popitem()
    check_that_all_are_found()
    groups.update([last])
    metadata = console.directory / "site" / "acme4-1.5.dist-info" / "METADATA"
    metadata.write_text(metadata.read_text() + f"Requires-Dist: {DISTRIBUTION}>=0.1\n")
    check_that_all_are_found()


class Taking:
    @hookimpl
    def penstock_serdes(self) -> Components:
        return {"json": "taking:Json", "plain": "taking:Plain"}


class Ours:
    @hookimpl
    def penstock_serdes(self) -> Components:
        return {"json": "penstock.plugins.serdes.json:JsonSerde"}


@pytest.mark.parametrize("order", [1, -1])
def test_built_in_names_cannot_be_taken(order: int, caplog: pytest.LogCaptureFixture) -> None:
    found = [("serdes", DISTRIBUTION, "1", Ours()), ("a", "acme", "2", Taking())][::order]
    registry = Registry(found, {})
    for _ in range(2):
        assert registry.find("serde", "json").package == DISTRIBUTION
    assert [record.message for record in caplog.records] == [
        "serde 'json' of package acme 2: it is the name of penstock's own, which stays in use: call it acme.json"
    ], "once"
    with pytest.raises(PluginError, match="serde 'plain' of package acme 2: a name of another package begins with "):
        registry.find("serde", "plain")
    assert registry.names("serde") == ["json"]


def test_a_plugin_that_lacks_an_optional_package_is_not_broken() -> None:
    module = "import sys; sys.modules['rocksdict'] = None; from penstock.plugins.operate.cli import main; main(['plugins', '--check'])"
    done = subprocess.run([sys.executable, "-c", module], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert re.search(
        r"^not installed: store backend 'contrib.rocksdb' .* needs the package rocksdict", done.stderr, re.M
    )


def test_check_finds_plugins_that_require_another_project(console: Console) -> None:
    environment = install(console, "acme", hook("serdes", "{'acme.fine': 'acme.serdes:Fine'}"), serdes=SERDES)
    metadata = console.directory / "site" / "acme-1.5.dist-info" / "METADATA"
    metadata.write_text(metadata.read_text() + "Requires-Dist: penstock[testing]>=0.1\n")
    _, err = console.apart("plugins", "--check", code=1, environment=environment)
    assert "broken: acme 1.5: it requires the distribution 'penstock', which is another project" in err


def test_check_finds_plugins_that_require_a_later_penstock(console: Console) -> None:
    environment = install(console, "acme", hook("serdes", "{'acme.fine': 'acme.serdes:Fine'}"), serdes=SERDES)
    metadata = console.directory / "site" / "acme-1.5.dist-info" / "METADATA"
    text = metadata.read_text()
    for required in ("penstock-streams>=99", "penstock_streams (>= 0.2, != 0.3)"):
        metadata.write_text(text + f"Requires-Dist: {required}\n")
        _, err = console.apart("plugins", "--check", code=1, environment=environment)
        assert f"broken: acme 1.5: it requires {required}, and 0.1" in err
    metadata.write_text(text + "Requires-Dist: penstock-streams>=0.1.0\n")
    console.apart("plugins", "--check", environment=environment)
