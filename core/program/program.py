"""Program: a checked topology, divided into sub-topologies. Renderers and drivers read it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..hooks import registry
from .assignment import Assignment, Resolution
from .compatibility import fingerprint
from .nodes import Graph
from .serdes import DEFAULTS, NodeDefaults


class Program(Graph):
    """A topology that was checked, as inert data that describing, shipping and running read.

    `Topology.build` makes it.
    """

    def __repr__(self) -> str:
        reads, writes = ", ".join(self.topics()), ", ".join(self.sink_topics())
        text = f"{len(self.nodes)} nodes, {len(self.all_stores())} stores, {len(self.subtopologies)} sub-topologies"
        return f"<Program: {text}{reads and f'; reads {reads}'}{writes and f'; writes {writes}'}>"

    # ---------------------------------------------------------------- on a log

    def resolve(self, partitions: Mapping[str, int], application_id: str) -> Assignment:
        """Lay the program over a log: tasks, their partitions, and the internal topics to create.

        `partitions` has the number of partitions of every topic in the log (leave out the internal topics of other
        applications: a pattern would match them; this application's it never matches). A sub-topology has as many tasks
        as the largest of its topics has partitions, and task p reads partition p of each topic that has one. If
        an internal topic has no number of partitions, it gets that of the topics that it must be co-partitioned with.
        Without such topics it gets the largest number among the topics of the sub-topologies that write to it.

        Raises TopologyError for missing topics, for topics that must be co-partitioned and are not, for a topic that
        two patterns match, and for an internal topic that exists with another number of partitions.
        """
        return Resolution(self, partitions, application_id).assignment()

    # ---------------------------------------------------------------- for readers

    def fingerprint(self, assignment: Assignment | None = None, settings: NodeDefaults | None = None) -> dict[str, Any]:
        """Return the parts that saved positions and state depend on, as data for JSON; see `check_compatible`.

        With an `assignment` it also holds the numbers of partitions and tasks. Serdes are those in force under
        `settings` (None: the defaults). Raises ConfigError or PluginError for a wrong serde.
        """
        return fingerprint(self, assignment, settings or DEFAULTS)

    def render(self, renderer: str) -> str:
        """Return the program as the installed renderer of that name writes it.

        Raises PluginError when there is none.
        """
        text: str = registry().load("renderer", renderer)(self)
        return text

    def describe(self) -> str:
        """Return the program as text, byte for byte as Kafka Streams' `Topology.describe()` prints it."""
        return self.render("text")

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        """Return a drawing for notebooks, or `describe()` where a notebook cannot draw."""
        return {"text/plain": self.describe(), "image/svg+xml": self.to_svg()}

    def to_svg(self) -> str:
        """Return the program as an SVG image, with its topics and stores; a notebook shows a program so."""
        return self.render("svg")

    def to_mermaid(self) -> str:
        """Return the program as a mermaid flowchart, with its topics and stores."""
        return self.render("mermaid")

    def to_dot(self) -> str:
        """Return the program as a Graphviz graph, with its topics and stores."""
        return self.render("dot")

    def to_json(self) -> str:
        """Return the program as a JSON document. Keys are only ever added while `format` is 1.

        `subtopologies`: `id`, `generates_tasks` (false for a global store's) and `nodes`, parents before children, each
        with `name` and `kind`. A `source` has `topics`, `pattern`, `children`, `key_serde`, `value_serde`,
        `timestamp_extractor` and `offset_reset`; a `processor` has `supplier` (`plugin`: whether that is the name of an
        installed one), `stores`, `parents` and `children`; a `sink` has `topic` or `topic_chooser`, `parents`,
        `key_serde`, `value_serde`, `partitioner` and `partition_by`. `stores`: `name`, `kind`, `global`, `subtopology`,
        `processors`, `backend`, `logged`, `filled_from` (the topic that is its changelog, for a global or read-only
        one), `key_serde` and `value_serde`. `topics`, those that are named: `name`, `internal`, `partitions` (of an
        internal one with a count of its own), `sources` and `sinks`. Functions and classes are given by their full
        names; null is the application's default.
        """
        return self.render("json")
