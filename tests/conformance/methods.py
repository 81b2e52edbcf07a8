"""The public methods of Kafka Streams, read from its jars: `python -m tests.conformance.methods JAR...` writes them.

They are in methods.txt, a class a line. docs/kafka_streams.md answers each, and test_methods.py beside this file holds
the page to the list and to the code. `javap` of a JDK reads the jars.
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


def main() -> int:
    """Write the list from the jars of kafka-streams and kafka-streams-test-utils."""
    jars = ":".join(sys.argv[1:])
    if not jars:
        print("give the jars of kafka-streams and kafka-streams-test-utils, of one version", file=sys.stderr)
        return 2
    lines = [f"{name}: {' '.join(_methods(jars, name))}" for name in _CLASSES.split()]
    lines.append(f"StreamsConfig: {' '.join(_settings(jars))}")
    LIST.write_text("\n".join(lines) + "\n")
    return 0


def _methods(jars: str, name: str) -> list[str]:
    """Return the names of a class's public methods; constructors have the name of their class, with its package."""
    found = re.findall(r" (\w+)\(", _javap(jars, name))
    return sorted(set(found) - _OF_JAVA)


def _settings(jars: str) -> list[str]:
    """Return the names of all settings, which are constants."""
    return sorted(set(re.findall(r' \w+_CONFIG = "([^"]+)"', _javap(jars, "StreamsConfig", "-constants"))))


def _javap(jars: str, name: str, *options: str) -> str:
    command = ["javap", "-public", *options, "-cp", jars, _PACKAGE + name]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


if __name__ == "__main__":
    sys.exit(main())
