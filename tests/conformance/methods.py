"""The public methods of Kafka Streams, read from its jars: `python -m tests.conformance.methods DIRECTORY` writes them.

They are in methods.txt, a class a line, each method with the release that brought it. docs/kafka_streams.md answers
each, and test_methods.py beside this file holds the page to the list and to the code. `javap` of a JDK reads the jars.
The directory has `kafka-streams-VERSION.jar` of releases, the newest two at least, and `kafka-streams-test-utils` of
the same versions, for example by `mvn dependency:copy`. A method that the oldest of them has keeps the release that the
list names already.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

LIST = Path(__file__).with_name("methods.txt")
_PACKAGE = "org.apache.kafka.streams."
_CLASSES = """
StreamsBuilder Topology KafkaStreams kstream.KStream kstream.BranchedKStream kstream.KGroupedStream
kstream.TimeWindowedKStream kstream.SessionWindowedKStream kstream.CogroupedKStream
kstream.TimeWindowedCogroupedKStream kstream.SessionWindowedCogroupedKStream kstream.KTable kstream.KGroupedTable
kstream.GlobalKTable kstream.Branched kstream.Consumed kstream.Produced kstream.Grouped kstream.Joined
kstream.StreamJoined kstream.TableJoined kstream.Materialized kstream.Named kstream.Printed kstream.Repartitioned
kstream.Suppressed kstream.Suppressed$BufferConfig kstream.EmitStrategy kstream.TimeWindows kstream.SlidingWindows
kstream.SessionWindows kstream.UnlimitedWindows kstream.JoinWindows kstream.Window kstream.Windowed
kstream.WindowedSerdes state.Stores state.StoreBuilder state.KeyValueStore state.ReadOnlyKeyValueStore
state.WindowStore state.ReadOnlyWindowStore state.SessionStore state.ReadOnlySessionStore state.VersionedKeyValueStore
state.VersionedRecord state.ValueAndTimestamp state.KeyValueIterator processor.StateStore processor.api.Processor
processor.api.ProcessorSupplier processor.ConnectedStoreProvider processor.api.ProcessorContext
processor.api.ProcessingContext processor.api.FixedKeyProcessor processor.api.FixedKeyProcessorContext
processor.api.Record processor.api.FixedKeyRecord processor.api.RecordMetadata processor.Cancellable
processor.Punctuator processor.TimestampExtractor processor.TopicNameExtractor processor.StreamPartitioner
processor.api.ProcessorWrapper errors.DeserializationExceptionHandler errors.ProductionExceptionHandler
errors.ProcessingExceptionHandler errors.ErrorHandlerContext errors.StreamsUncaughtExceptionHandler TopologyTestDriver
TestInputTopic TestOutputTopic test.TestRecord processor.api.MockProcessorContext
"""
_OF_JAVA = {"equals", "hashCode", "toString"}
_METHOD = re.compile(r"^  [^(]* (\w+)\(", re.MULTILINE)


def main() -> int:
    """Write the list from the jars of a directory."""
    jars = {
        _version(jar): jar for directory in sys.argv[1:] for jar in Path(directory).glob("kafka-streams-[0-9]*.jar")
    }
    if not jars:
        print("give a directory with the jars of kafka-streams and kafka-streams-test-utils", file=sys.stderr)
        return 2
    found: dict[str, dict[str, str]] = {}
    later = ""
    for version, jar in sorted(jars.items(), reverse=True):
        here, release = _methods(jar), ".".join(map(str, version[:-1]))
        found = found or {name: dict.fromkeys(here[name], later) for name in _CLASSES.split()}
        for name, methods in found.items():
            # A name that was gone for some releases counts from its return.
            methods.update({each: release for each in here.get(name, ()) if methods.get(each) == later})
        later = release
    known = _listed()
    for name, methods in found.items():
        methods.update({each: known.get((name, each), since) for each, since in methods.items() if since == later})
    lines = [f"{name}: {' '.join(f'{each}@{since}' for each, since in found[name].items())}" for name in found]
    lines.append(f"StreamsConfig: {' '.join(_settings(jars[max(jars)]))}")
    LIST.write_text("\n".join(lines) + "\n")
    return 0


def _listed() -> dict[tuple[str, str], str]:
    """Return the release of each class and method that the list has now."""
    lines = LIST.read_text().splitlines() if LIST.exists() else []
    return {
        (name, method): since
        for name, _, methods in (line.partition(": ") for line in lines if not line.startswith("StreamsConfig"))
        for method, since in (each.split("@") for each in methods.split())
    }


def _version(jar: Path) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", jar.name)))


def _methods(jar: Path) -> dict[str, list[str]]:
    """Return the names of the public methods of each class that a release has.

    Constructors have the name of their class, with its package.
    """
    printed = _javap(jar, *(_PACKAGE + name for name in _CLASSES.split()))
    classes = re.findall(
        rf"^public .*?{re.escape(_PACKAGE)}([\w.$]+)[^\n]* \{{\n(.*?)^\}}", printed, re.DOTALL | re.MULTILINE
    )
    return {name: sorted(set(_METHOD.findall(body)) - _OF_JAVA) for name, body in classes}


def _settings(jar: Path) -> list[str]:
    """Return the names of all settings, which are constants."""
    return sorted(set(re.findall(r' \w+_CONFIG = "([^"]+)"', _javap(jar, "-constants", f"{_PACKAGE}StreamsConfig"))))


def _javap(jar: Path, *arguments: str) -> str:
    """Return what `javap` prints; it leaves out, and complains about, a class that the release does not have."""
    jars = f"{jar}:{jar.with_name(jar.name.replace('streams-', 'streams-test-utils-'))}"
    command = ["javap", "-public", "-cp", jars, *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=240).stdout


if __name__ == "__main__":
    sys.exit(main())
