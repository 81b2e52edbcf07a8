"""Checks of a topology for a Spark pipeline, when the pipeline is built."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from penstock import Application, ConfigError, SinkNode, SourceNode, TopologyError
from penstock.program.checks import nearest

_IN_LOG = "its records are part of a log's commit, and here Spark's checkpoint is the commit"
_IN_MEMORY = "it ends with its process, and a batch may run in any"


def check_application(application: Any) -> None:
    """Check that an application can run in a Spark pipeline.

    Raises TopologyError or ConfigError with the node and what to do.
    """
    if not isinstance(application, Application):
        raise ConfigError(f"transform: expected an Application, found {application!r}: Application(ID, topology)")
    name = application.settings.changelog.partition(":")[0]
    unsuited = _IN_LOG if application.settings.log_changelog is not None else _IN_MEMORY if name == "memory" else None
    if unsuited is not None:
        raise ConfigError(
            f"application {application.id!r}, setting 'changelog': a changelog of the kind {name!r} does not do for an "
            f"operator of a Spark pipeline, because {unsuited}; name a place that all workers reach, "
            "for instance changelog='directory:s3://bucket/folder'"
        )
    for problem in _problems(application):
        raise TopologyError(f"application {application.id!r} cannot run as an operator of a Spark pipeline: {problem}")


def _problems(application: Application) -> Iterable[str]:
    program = application.program
    nodes = program.nodes.values()
    for topic in program.internal_topics:
        writers = [node.name for node in nodes if isinstance(node, SinkNode) and node.topic == topic]
        readers = [node.name for node in nodes if isinstance(node, SourceNode) and topic in node.topics]
        yield (
            f"sink {', '.join(map(repr, writers))} and source {', '.join(map(repr, readers))} exchange records through "
            f"the repartition topic {topic!r}, which needs a log. Give rows their final key before: the key column of "
            "a source's DataFrame decides which task gets them; or run the application on a log (penstock run)"
        )
    for each in program.global_stores:
        yield (
            f"global store {each.store.name!r} reads all of topic {each.source.topics[0]!r} from a log. Join the "
            "DataFrame with that table before, in Spark; or run the application on a log (penstock run)"
        )
    for node in nodes:
        if isinstance(node, SourceNode) and node.pattern is not None:
            yield (
                f"source {node.name!r} reads topics by the pattern {node.pattern.pattern!r}, and there is no log to "
                "look in. Name its topics: each has a DataFrame"
            )
        if isinstance(node, SinkNode) and (node.partitioner or node.partition_by) is not None:
            what = "partitioner" if node.partition_by is None else "partition_by"
            yield (
                f"sink {node.name!r} has a {what}, and rows have no partitions. Leave it out, and partition what "
                "comes out where it is written"
            )
    fed = {each.store.name: each for part in program.subtopologies for each in part.read_only_stores}
    for name, filled in fed.items():
        yield (
            f"read-only store {name!r} is restored from topic {filled.source.topics[0]!r} of a log. Fill a store of "
            "your own from that table's DataFrame; or run the application on a log (penstock run)"
        )
    for store in program.stores.values():
        if not store.logged and store.name not in fed:
            yield (
                f"store {store.name!r} is not logged, and a batch may be repeated on any host: its changelog is the "
                "only way there. Declare it with logged=True"
            )


def check_sources(application: Application, sources: Any) -> None:
    """Check that the DataFrames match the sources. Raises ConfigError with source and topic."""
    if not isinstance(sources, Mapping):
        raise ConfigError(f"transform: expected a mapping of topics to DataFrames, found {type(sources).__name__}")
    topics = application.program.topics()
    for topic in sources:
        if topic not in topics:
            raise ConfigError(
                f"application {application.id!r}: no source reads topic {topic!r}, for which there is a "
                f"DataFrame{nearest(topic, topics)}"
            )
    for node in application.program.nodes.values():
        if isinstance(node, SourceNode):
            for topic in node.topics:
                if topic not in sources:
                    raise ConfigError(
                        f"application {application.id!r}: source {node.name!r} reads topic {topic!r}, for which there "
                        f"is no DataFrame; there is: {', '.join(map(repr, sources)) or 'none'}. Pass one: "
                        f"transform(application, {{{topic!r}: frame}})"
                    )


def ordered_topics(sources: Mapping[str, Any], source_order: Sequence[str] | None) -> list[str]:
    """Return the topics in the order in which their DataFrames are united. Raises ConfigError."""
    if source_order is None:
        return sorted(sources)
    is_ordered = isinstance(source_order, Sequence) and not isinstance(source_order, str)
    if not is_ordered or sorted(source_order) != sorted(sources):
        raise ConfigError(
            f"transform: source_order is a list that has each topic of `sources` once "
            f"({', '.join(map(repr, sources))}), found {source_order!r}"
        )
    return list(source_order)


def check_count(partitions: Any) -> None:
    """Check a number of tasks. Raises ConfigError."""
    if not isinstance(partitions, int) or isinstance(partitions, bool) or partitions < 1:
        raise ConfigError(f"transform: partitions is a whole number above 0, found {partitions!r}")
