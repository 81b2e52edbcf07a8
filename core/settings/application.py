"""An application: a topology with an id and settings, checked when it is made."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any

from ..errors import ConfigError, PluginError
from ..hooks import registry
from ..program.builder import Topology
from ..program.drawn import Drawn
from ..program.program import Program
from ..program.serdes import SerdeLike, find_serde
from ..record import Record
from ..serde import Serde
from ..support.names import LAYOUTS
from .dead_letters import check_dead_letters
from .layers import CODE, Layer
from .names import MAPPINGS
from .running import Running, Summary
from .settings import Settings, add_origins_to_errors

_ID = re.compile(r"[A-Za-z0-9._-]{1,200}")


class Application:
    """A topology, or a StreamsBuilder, with an id and settings; what `penstock run MODULE:ATTR` runs.

    `application_id` names the application in the log: its positions, internal topics and state; it is 1 to 200 letters,
    digits, '.', '_' or '-', and does not end with "-layouts". `settings` are the
    fields of `Settings`; those whose names are no Python names, such as Kafka Streams', go into the mapping `config`.
    Raises ConfigError, PluginError or TopologyError at once for anything that cannot work.
    """

    epoch = ""
    """The epoch of the preparation: only tasks opened in this epoch run. Empty before preparation."""
    given_id = ""
    """The id that the program gives, where the log has the application under another one since it was resharded."""

    def __init__(
        self,
        application_id: str,
        topology: Topology | TopologyBuilder,
        config: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        if config is not None and not isinstance(config, Mapping):
            raise ConfigError(
                f"application {application_id!r}: expected a mapping of settings, found {config!r}; a file of settings "
                "is given with `penstock run --config FILE`"
            )
        given = [(name, value, CODE) for each in (config or {}, settings) for name, value in each.items()]
        self._prepare(application_id, topology, Layer.read(given, Settings.names()))

    def _prepare(self, application_id: str, topology: Topology | TopologyBuilder, layer: Layer) -> None:
        if not isinstance(application_id, str) or not _ID.fullmatch(application_id):
            raise ConfigError(f"application id {application_id!r}: expected 1 to 200 letters, digits, '.', '_' or '-'")
        if application_id.endswith(LAYOUTS):
            raise ConfigError(
                f"application id {application_id!r} ends with {LAYOUTS!r}: the log has there how application "
                f"{application_id.removesuffix(LAYOUTS)!r} was resharded; choose another id"
            )
        if layer.values.get("application_id", application_id) != application_id:
            raise ConfigError(
                f"application {application_id!r}: application.id is {layer.values['application_id']!r}: keep one of "
                "them"
            )
        self.id = application_id
        self.given = layer
        self.settings = Settings.of(layer)
        with add_origins_to_errors(layer):
            _check_installed(self.settings)
        if not hasattr(topology, "build") or isinstance(topology, type):
            found = type(topology).__name__
            if isinstance(topology, type):
                found = f"the class {topology.__name__}: write {topology.__name__}()"
            raise ConfigError(
                f"application {application_id!r}: expected a Topology or a StreamsBuilder, found {found} (it is built "
                "here)"
            )
        self.topology = topology
        built = topology.build(self.settings) if isinstance(topology, TopologyBuilder) else topology
        self.program = built.build()
        with add_origins_to_errors(layer):
            check_dead_letters(self.id, self.settings, self.program)

    def __repr__(self) -> str:
        return f"Application({self.id!r}, {self.settings!r})"

    def start(self, trigger: str = "continuous", *, engine: str | None = None, **options: Any) -> Running:
        """Start this application in a thread of this process, and return the handle of its run.

        The run handles no signals and leaves logging alone: it is for services. Use the handle in a `with` or `async
        with` block. Arguments are those of `penstock.run`.
        """
        running: Running = _engine(self, engine).start(self, trigger, **options)
        return running

    def run(self, trigger: str = "available_now", *, engine: str | None = None, **options: Any) -> Summary:
        """Run this application, and return the run's summary: `penstock.run` with the same arguments."""
        return run(self, trigger, engine=engine, **options)

    def produce(
        self,
        topic: str,
        rows: Iterable[Record | tuple[Any, ...]],
        *,
        key_serde: SerdeLike = None,
        value_serde: SerdeLike = None,
        partition: int | None = None,
        partitions: int | None = None,
    ) -> int:
        """Append rows to a topic of the application's log, as its program reads them; return their number.

        A row is a Record, (key, value), (key, value, timestamp in ms) or (key, value, timestamp, headers). Without a
        timestamp, or with one of None, it is now. Serdes are those of the source that reads the topic, else of the sink
        that writes it, else the application's; `key_serde` and `value_serde` say otherwise. The partition is that of
        the key; `partition` chooses one for all rows. `partitions` makes a topic of so many if there is none. Rows are
        written 1,000 at a time; each thousand is durable before the next is taken, so `rows` may be a long iterator.

        Raises UnknownTopicError for a topic that is not in the log, ConfigError or SerdeError for a row that cannot be
        a record (a note says how many were written before it), and LogError.

        >>> from penstock.dsl import StreamsBuilder
        >>> builder = StreamsBuilder()
        >>> builder.stream("orders", value_serde="json").map_values(lambda order: order["item"]).to("items")
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as directory:
        ...     shop = Application("shop", builder, engine="embedded", data_dir=directory)
        ...     shop.produce("orders", [("anna", {"item": "tea"}, 0), ("ben", {"item": "cup"}, 1)], partitions=1)
        ...     shop.produce("items", [], partitions=1)
        ...     _ = shop.run()
        ...     [(record.key, record.value) for record in shop.read("items")]
        2
        0
        [('anna', 'tea'), ('ben', 'cup')]
        """
        rows_written: int = _engine(self, None).produce(
            self, topic, rows, key_serde=key_serde, value_serde=value_serde, partition=partition, partitions=partitions
        )
        return rows_written

    def read(
        self,
        topic: str,
        *,
        key_serde: SerdeLike = None,
        value_serde: SerdeLike = None,
        partition: int | None = None,
        limit: int | None = None,
    ) -> list[Record]:
        """Return the records of a topic of the application's log, up to where it ends now.

        They are in the order of partitions, and in each as they were written; only committed ones. Serdes are those of
        the sink that writes the topic, else of the source that reads it, else the application's. `partition` reads one
        alone, and `limit` at most so many records, the first.

        Raises UnknownTopicError for a topic that is not in the log, SerdeError for a record that the serde cannot read,
        ConfigError and LogError.
        """
        records: list[Record] = _engine(self, None).read(
            self, topic, key_serde=key_serde, value_serde=value_serde, partition=partition, limit=limit
        )
        return records

    def with_settings(self, config: Mapping[str, Any] | None = None, **settings: Any) -> Application:
        """Return this application with some settings replaced."""
        given = {**(config or {}), **settings}
        layer = Layer.read(((name, value, CODE) for name, value in given.items()), Settings.names())
        return self._with(layer.over(self.given.without(set(MAPPINGS) & set(given))))

    def under(self, layer: Layer) -> Application:
        """Return this application with a layer over its own settings; one that names an id renames it."""
        return self._with(layer.over(self.given))

    def _with(self, layer: Layer) -> Application:
        made = object.__new__(Application)
        made._prepare(layer.values.get("application_id", self.id), self.topology, layer)
        if made.id == self.id:
            made.given_id = self.given_id
        return made


def run(
    application: Application, trigger: str = "available_now", *, engine: str | None = None, **options: Any
) -> Summary:
    """Run an application on the engine of its settings, or on `engine`; return the run's summary.

    `trigger` "available_now": process what the topics hold now, and return. A duration such as "10s": a batch that
    often (as often as possible with "0s"), until SIGTERM, Ctrl-C or `stop`; each ends it after the running batch.
    "continuous": tasks read, process and commit on their own, every `commit_interval`, until the same; each ends it
    after one more commit.

    `options`: `on_progress`, a function that is called with a Progress after each batch, and twice a second within one;
    `clock`, the wall clock that tasks see in batches; `stop`, an event that ends the run; `wait`: True waits while
    another driver runs the application, and takes over when that ends; `until`, how far "available_now" goes: "ends",
    to the ends that the source topics have now, or "drained", until topics that the program itself writes and reads are
    read to their ends, too; and those of the engine, such as `master` of Spark.

    Raises TopologyError for topics that are missing, IncompatibleStateError when the program no longer fits what it
    saved, LogError when another driver runs the application, and the error that a task failed with. Raises PluginError
    for an engine that is not installed, and ConfigError for an option that is not the engine's.
    """
    summary: Summary = _engine(application, engine).run_with(application, trigger, **options)
    return summary


def _engine(application: Application, name: str | None) -> Any:
    if not isinstance(application, Application):
        raise ConfigError(
            f'run: expected an Application, found a {type(application).__name__}; write run(Application("ID", PROGRAM))'
        )
    return registry().load("engine", application.settings["engine"] if name is None else name)()


def _check_installed(settings: Settings) -> None:
    """Check that the plugins that settings name are installed; loads none."""
    serdes = ("key_serde", "value_serde", "state_serde")
    named = {
        "log": ("log", settings.log.partition(":")[0]),
        "changelog": ("changelog", settings.changelog.partition(":")[0]),
        "store_backend": ("store backend", settings.store_backend),
        **{name: ("serde", getattr(settings, name)) for name in serdes},
    }
    for setting, (kind, name) in named.items():
        if kind == "serde" and isinstance(name, Serde):
            continue
        if not isinstance(name, str):
            raise ConfigError(f"setting {setting!r}: expected the name of an installed {kind}, found {name!r}")
        try:
            if kind == "serde":
                find_serde(name, f"setting {setting!r}")
            else:
                registry().find(kind, name)
        except PluginError as error:
            raise PluginError(f"setting {setting!r}: {error}") from error


class TopologyBuilder(Drawn):
    """Something that an Application takes in place of a Topology: it may build another one for other settings."""

    @abstractmethod
    def build(self, settings: Settings | None = None) -> Topology:
        """Return a new topology. `settings` are those of the application; None: the defaults."""

    def _program_to_draw(self) -> Program:
        return self.build().build()
