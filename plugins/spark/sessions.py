"""Spark sessions: making one for penstock, and the settings that a query needs on any session."""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock import ConfigError, RuntimeUnavailableError
from penstock.plugins.engine.task.class_archive import archive_options, digest, fitting_name
from penstock.plugins.engine.task.locations import user_cache
from penstock.plugins.engine.task.temporary import TemporaryDirectory
from penstock.support.packages import check_installed

from .interpreter import check_command, chosen_command

if TYPE_CHECKING:
    from pyspark import SparkConf
    from pyspark.sql import SparkSession


JAVA_OPTIONS = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:MetaspaceSize=256m -Djdk.lang.Process.launchMechanism=VFORK"
)
"""Options for a short start: in a local session no record passes through the JVM, which only plans small batches.

The compiler and collector for large services cost more than they bring. Spark's classes take 150 MB; until so many are
loaded, Java's default collects all garbage four times. The child processes are Hadoop's `chmod` calls.
"""

_LINKED = ("bin", "sbin", "jars")


def launch_home() -> Path | None:
    """Return a SPARK_HOME from which Python processes import the installed pyspark; None where it cannot be made.

    Spark puts its own archive of pyspark first on the path of every Python process it starts. Modules in an archive are
    compiled anew by each of these: about a second of each one's start, of which an application makes five.
    It is in the user's cache, for its path is part of what the archive of classes is valid for.
    """
    package = importlib.util.find_spec("pyspark")
    if "SPARK_HOME" in os.environ or package is None or package.origin is None:
        return None
    origin = Path(package.origin).parent
    if not (origin / "jars").is_dir():
        return None
    home = user_cache() / f"spark-{digest(str(origin))}"
    try:
        home.mkdir(parents=True, exist_ok=True)
        for name in _LINKED:
            _link(home / name, origin / name)
    except OSError:
        return None
    return home


def class_archive(java: str) -> Path | None:
    """Return the path of the class archive for this Java and pyspark; None if there can be none."""
    home = launch_home()
    return None if home is None else home / f"classes-{fitting_name(java, home / 'jars')}.jsa"


def make_class_archive(java: str) -> Path:
    """Run a small application in a JVM that archives the classes it has loaded, at its end; return the archive.

    That takes about a minute. Raises ConfigError or RuntimeUnavailableError when there can be no archive, with the
    reason.
    """
    archive = class_archive(java)
    if archive is None:
        raise ConfigError(
            "there is nowhere to start Spark from but SPARK_HOME itself: unset SPARK_HOME, use the pyspark that pip "
            "installs, and let the user's cache directory (XDG_CACHE_HOME, ~/.cache) be writable"
        )
    with TemporaryDirectory("warmup") as directory:
        made = archive.with_name(f"{archive.name}.{os.getpid()}")
        done = subprocess.run(
            [sys.executable, "-m", "penstock.plugins.spark.warmup", str(directory), str(made)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
        try:
            if done.returncode != 0 or not made.exists():
                said = "\n".join(line for line in done.stdout.splitlines() if "[cds" not in line)
                raise RuntimeUnavailableError(
                    f"{java} made no archive of Spark's classes; everything works without one. The end of what it "
                    f"said:\n{said.strip()[-1500:]}"
                )
            os.replace(made, archive)
        finally:
            made.unlink(missing_ok=True)
    # Those for jar files that are no longer there: no JVM can use them, and each is large.
    of_this_java = archive.name.rpartition("-")[0]
    for old in archive.parent.glob(f"{of_this_java}*.jsa"):
        if old != archive:
            old.unlink(missing_ok=True)
    return archive


def _link(link: Path, target: Path) -> None:
    if not link.exists():
        # Write beside it, then move it: another process may do the same or read it now.
        new = link.with_name(f"{link.name}.{os.getpid()}")
        new.symlink_to(target)
        os.replace(new, link)


_OTHERWISE = {
    "spark.master": "use --master (`master=`)",
    "spark.submit.deployMode": "the driver is this process",
    "spark.pyspark.driver.python": "the driver is this process",
    "spark.remote": "penstock needs a classic session, because its runner watches the query in the driver's JVM",
    "spark.sql.shuffle.partitions": "the number of slots is the setting parallelism (--set parallelism=N)",
}
_OF_THE_CONTEXT = ("spark.sql.streaming.ui.", "spark.sql.streaming.streamingQueryListeners")


def parse_conf(given: Iterable[str]) -> dict[str, str]:
    """Return settings from texts KEY=VALUE, checked; the last of a key counts."""
    found = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"--conf {text!r}: expected KEY=VALUE, such as spark.driver.memory=4g")
        found[key.strip()] = value
    check_conf(found)
    return found


def check_conf(conf: Mapping[str, str]) -> None:
    """Raise ConfigError for keys that are not Spark's, and for keys that a run sets itself."""
    for key in conf:
        if not key.startswith("spark."):
            raise ConfigError(
                f"--conf {key}: Spark's settings begin with 'spark.'; a setting of penstock or of Kafka's clients is "
                "given by --set"
            )
        reason = _OTHERWISE.get(key)
        if reason is None and key in query_options(checkpoint_is_local=True):
            reason = "the query of an application needs the value that penstock sets"
        is_for_queries = key.startswith(STREAMING) and not key.startswith(_OF_THE_CONTEXT)
        if reason is None and is_for_queries and key not in TAKEN_OVER:
            reason = "the query of an application has Spark's default, and this session has no other query"
        if reason is not None:
            raise ConfigError(f"--conf {key}: it cannot be changed here: {reason}")


SPARK = "the engine 'spark' (the engine 'embedded' does without)"
_LEAST_JAVA = 17
_INSTALL_JAVA = (
    "install a Java runtime of version 17 or later with all its modules (Debian, Ubuntu: apt-get install "
    "openjdk-17-jre-headless; macOS: brew install openjdk@17; conda: openjdk) and put `java` on PATH or set JAVA_HOME"
)

_log = logging.getLogger("penstock.spark")

_kept: list[TemporaryDirectory] = []
"""Directories that sessions of this process use until it ends."""
_QUIET = """\
rootLogger.level = off
rootLogger.appenderRef.nothing.ref = nothing
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = off
appender.nothing.type = Null
appender.nothing.name = nothing
"""
"""Without an appender Spark would ignore the configuration and use its own."""


def make_session(master: str | None = None, options: Mapping[str, str] | None = None) -> SparkSession:
    """Return a new SparkSession for penstock, without a web interface; the caller stops it.

    `master` is Spark's (None: that of spark-submit, or all cores of this host). A local one binds to loopback, and
    tolerates lost workers: plain `local[n]` fails a query at the first. `options` are Spark's own settings, and win
    over ours; so do those of spark-submit.
    Raises RuntimeUnavailableError when PySpark or Java is missing or too old, with what to install, and when the
    workers' interpreter (PYSPARK_PYTHON, or this process's) does not fit.
    """
    java = check_java()
    submitted = _submitted()
    master = _tolerant(master or submitted.pop("spark.master", "local[*]"))
    submitted.pop("spark.master", None)
    options = {**submitted, **(options or {})}
    is_local = master.startswith("local")
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    if SparkContext._active_spark_context is not None:
        raise ConfigError(
            "this process has a SparkContext already: pass its SparkSession (session=...), or stop it first"
        )
    python = chosen_command(options)
    if is_local:
        check_command(python)
    chosen = {**session_options(is_local, java), "spark.pyspark.python": python, **options}
    try:
        with _launching(is_local, python) as directory:
            # Without a configuration of its own Spark explains how to change its log level, and logs each lost worker
            # at length.
            quiet = directory / "log4j2.properties"
            quiet.write_text(_QUIET)
            java_options = chosen.get("spark.driver.extraJavaOptions", "")
            scratch = directory / "java"
            scratch.mkdir()
            # Files that Spark unpacks are deleted with this process, however it ends.
            chosen["spark.driver.extraJavaOptions"] = (
                f'-Dlog4j2.configurationFile={quiet.as_uri()} "-Djava.io.tmpdir={scratch}" {java_options}'
            )
            builder = SparkSession.builder.appName("penstock").master(master)
            for name, value in chosen.items():
                builder = builder.config(name, value)
            with _keeping_ctrl_c():
                _start_jvm(SparkConf().setAppName("penstock").setMaster(master).setAll(list(chosen.items())))
                session: SparkSession = builder.getOrCreate()
        # Without this it prints a traceback when the JVM has ended; the runner reports that in one sentence.
        session.sparkContext._accumulatorServer.handle_error = lambda request, client_address: None  # type: ignore[method-assign]
    except PySparkRuntimeError as error:
        raise RuntimeUnavailableError(
            f"Spark did not start ({error}); see its messages above. Is Java {_LEAST_JAVA} or later with all its "
            f"modules there? Otherwise {_INSTALL_JAVA}"
        ) from error
    return session


@contextmanager
def local_session() -> Iterator[SparkSession]:
    """Use the active session of this process, or a new local one of one core that ends with the block.

    Raises as `make_session`.
    """
    check_java()
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    if active is not None:
        yield active
        return
    session = make_session("local[1]")
    try:
        yield session
    finally:
        session.stop()


def check_session(session: SparkSession) -> None:
    """Raise RuntimeUnavailableError for a session that cannot run an application, with the reason."""
    if type(session).__module__.startswith("pyspark.sql.connect"):
        raise RuntimeUnavailableError(
            "this is a Spark Connect session; penstock needs a classic SparkSession (its runner watches the query in "
            "the driver's JVM): make one with SparkSession.builder.master(...), or leave `session` out"
        )
    context = session.sparkContext
    configuration = dict(context.getConf().getAll())
    check_python_memory(configuration)
    if is_cluster(context.master):
        check_allocation(configuration)


def check_allocation(configuration: Mapping[str, str]) -> None:
    """Raise RuntimeUnavailableError if a cluster's executors come and go with the load. `configuration` is Spark's."""
    if configuration.get("spark.dynamicAllocation.enabled", "false").lower() != "true":
        return
    least, most = (configuration.get(f"spark.dynamicAllocation.{each}Executors") for each in ("min", "max"))
    if least is not None and least == most:
        return
    raise RuntimeUnavailableError(
        "spark.dynamicAllocation.enabled=true: Spark ends executors that have little to do, and their tasks would move "
        "with their state each time; set spark.dynamicAllocation.enabled=false and spark.executor.instances, or set "
        f"spark.dynamicAllocation.minExecutors and maxExecutors to the same number (now {least} and {most})"
    )


def check_python_memory(configuration: Mapping[str, str]) -> None:
    """Raise RuntimeUnavailableError if Spark limits the address space of Python. `configuration` is Spark's."""
    limit = configuration.get("spark.executor.pyspark.memory")
    if limit:
        raise RuntimeUnavailableError(
            f"spark.executor.pyspark.memory={limit} limits the address space of Spark's Python workers, and task hosts "
            "inherit it: they cannot open a store in LMDB, which maps 64 GiB without using as much memory; "
            "leave it out, and set spark.executor.memoryOverhead"
        )


def is_cluster(master: str | None) -> bool:
    """Return whether Spark has executors beside the driver; `local-cluster[...]` has."""
    return re.fullmatch(r"local(\[.*\])?", master or "local[*]") is None


def check_java() -> str:
    """Return the command by which Spark will start Java.

    Raises MissingPackageError unless PySpark and what it needs are installed, and RuntimeUnavailableError unless there
    is Java 17 or later, each with what to do.
    """
    check_installed(SPARK, None, "pyspark", "pandas", "pyarrow", "numpy")
    home = os.environ.get("JAVA_HOME")
    if home and not (Path(home) / "bin" / "java").exists():
        raise RuntimeUnavailableError(
            f"JAVA_HOME is {home!r}, and there is no bin/java in it; correct it, or {_INSTALL_JAVA}"
        )
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None:
        raise RuntimeUnavailableError(f"Spark needs Java, and there is no `java` on PATH; {_INSTALL_JAVA}")
    version = _java_version(java)
    if version is not None and version < _LEAST_JAVA:
        raise RuntimeUnavailableError(
            f"Spark needs Java {_LEAST_JAVA} or later, and {java} is version {version}; {_INSTALL_JAVA}"
        )
    return java


def local_cores(master: str | None) -> int | None:
    """Return the number of tasks that Spark runs at once on this machine; None on a cluster.

    `master`: as for `make_session`.
    """
    match = re.fullmatch(r"local(?:\[(\d+|\*)[^\]]*\])?", master or "local[*]")
    if match is None:
        return None
    return (os.cpu_count() or 1) if match[1] == "*" else int(match[1] or 1)


def slots_of_executor(session: SparkSession) -> int:
    """Return the number of tasks that an executor runs at once; 0 if only the executor knows."""
    context = session.sparkContext
    if local_cores(context.master) is not None:
        return int(context.defaultParallelism)
    return int(context.getConf().get("spark.executor.cores", "0") or 0)


STREAMING = "spark.sql.streaming."
TAKEN_OVER = {
    "spark.sql.streaming.checkpointFileManagerClass": "how files are written where a checkpoint lies that is not local",
    "spark.sql.streaming.metricsEnabled": "whether Spark's own registry of metrics has those of queries",
    "spark.sql.streaming.noDataProgressEventInterval": "how often listeners hear of a query without data",
    "spark.sql.streaming.pollingDelay": "how often a query without data looks for some",
    "spark.sql.streaming.stopTimeout": "how long a stop waits",
}
"""Settings of streaming queries that an application's query takes over from the session, and what they decide.

It has Spark's default for the others, which are the wishes of other queries: the format of their checkpoints, say.
"""


def tune(session: SparkSession, checkpoint_is_local: bool, shuffle_partitions: int) -> SparkSession:
    """Return a new session on the same SparkContext with the settings that an application's query wants."""
    tuned, options = session.newSession(), query_options(checkpoint_is_local)
    reset = []
    for name, value in sorted(tuned.conf.getAll.items()):
        if name.startswith(STREAMING) and name not in TAKEN_OVER and tuned.conf.isModifiable(name):
            tuned.conf.unset(name)
            if value != options.get(name):
                reset.append(f"{name}={value}")
    if reset:
        _log.info("the application's query does not take these settings over from Spark's configuration: %s", reset)
    for name, value in options.items():
        tuned.conf.set(name, value)
    tuned.conf.set("spark.sql.shuffle.partitions", str(shuffle_partitions))
    _share_listeners(session, tuned)
    return tuned


def _share_listeners(session: SparkSession, tuned: SparkSession) -> None:
    """Send the events of another query to a session's listeners, except those that Spark sends to each session."""
    given, own = (each._jsparkSession.streams() for each in (session, tuned))
    of_each = {listener.getClass().getName() for listener in own.listListeners()}
    for listener in given.listListeners():
        if listener.getClass().getName() not in of_each:
            own.addListener(listener)


def _submitted() -> dict[str, str]:
    """Return the settings that spark-submit was given, if it started this process."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return {}
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()
    return dict(SparkConf().getAll())


def session_options(is_local: bool, java: str) -> dict[str, str]:
    """Return the settings that a new session has unless its maker says otherwise."""
    options = {
        "spark.pyspark.driver.python": sys.executable,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.locality.wait": "0s",
        # Spark ends the other attempt of a speculative task. It only waits for a host, and until Spark's default of two
        # seconds has passed, it keeps a core from the next batch.
        "spark.python.task.killTimeout": "100ms",
        # A worker of a busy machine may connect later than in Spark's default of 15 s, which ends the query.
        "spark.python.authenticate.socketTimeout": "120s",
        "spark.sql.catalogImplementation": "in-memory",
    }
    if is_local:
        options |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.extraJavaOptions": " ".join([JAVA_OPTIONS, *archive_options(class_archive(java))]),
        }
    return options


def query_options(checkpoint_is_local: bool) -> dict[str, str]:
    """Return the settings of an application's query in a session of its own."""
    options = {
        "spark.sql.adaptive.enabled": "false",
        # A batch has few rows: generating and compiling code for it takes longer than interpreting it.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
        "spark.sql.streaming.minBatchesToRetain": "5",
        "spark.sql.streaming.numRecentProgressUpdates": "50",
        "spark.sql.streaming.stateStore.providerClass": (
            "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
        ),
        "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
        "spark.sql.execution.pyspark.udf.faulthandler.enabled": "false",
    }
    if checkpoint_is_local:
        # Hadoop's default for local files starts a `chmod` process and writes a checksum file for each file, 16 for a
        # batch: a third of a batch's time, for a checkpoint that is disposable.
        options |= {
            "fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
            "fs.file.impl.disable.cache": "true",
            "spark.sql.streaming.checkpointFileManagerClass": "org.apache.spark.sql.execution.streaming.checkpointing."
            "FileSystemBasedCheckpointFileManager",
        }
    return options


def _tolerant(master: str) -> str:
    """Return a local `master` with a number of attempts for each task, unless it has one."""
    if master == "local":
        return "local[1,4]"
    match = re.fullmatch(r"local\[([^,\]]+)\]", master)
    return f"local[{match[1]},4]" if match else master


def _java_version(java: str) -> int | None:
    """Return Java's major version; None when it does not say."""
    release = Path(java).resolve().parent.parent / "release"
    try:
        text = release.read_text()
    except OSError:
        # Not every package has that file, and asking Java itself takes a tenth of a second.
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
        if answer.returncode != 0:
            raise RuntimeUnavailableError(
                f"`{java} -version` failed: {answer.stderr.strip()}; {_INSTALL_JAVA}"
            ) from None
        text = answer.stderr
    match = re.search(r'(?:JAVA_VERSION=|version )"(?:1\.)?(\d+)', text)
    return int(match[1]) if match else None


@contextmanager
def _keeping_ctrl_c() -> Iterator[None]:
    """Restore the handler of Ctrl-C: a SparkContext replaces it for good."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if before is not None:
            signal.signal(signal.SIGINT, before)


@contextmanager
def _launching(is_local: bool, python: str) -> Iterator[Path]:
    """Start the JVM in `launch_home`; the block gets a directory that is kept until this process ends."""
    temporary = TemporaryDirectory("spark")
    _kept.append(temporary)
    # `spark.pyspark.python` is not enough: planning runs in Python processes that are started by the variables.
    variables = {"PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": sys.executable}
    home = launch_home() if is_local else None
    if home is not None:
        variables["SPARK_HOME"] = str(home)
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield temporary.path
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


# ---------------------------------------------------------------- what is loaded while Spark starts
# A start takes one core: this process waits for the JVM, and the JVM initializes thousands of classes in one thread.
# What is loaded here would be loaded a little later; without it everything works, and starts more slowly.

_CLASSES = (
    "org.apache.spark.sql.internal.SQLConf$",
    "org.apache.spark.sql.catalyst.analysis.FunctionRegistry$",
    "org.apache.spark.sql.catalyst.ScalaReflection$",
    "org.apache.spark.SparkThrowableHelper$",
    "org.apache.spark.sql.catalyst.parser.CatalystSqlParser$",
    "org.apache.spark.sql.util.ArrowUtils$",
)
"""Their initialization loads thousands of others. A SparkContext needs none of these, a query needs all."""


def _start_jvm(conf: SparkConf) -> None:
    """Start Spark's JVM with these settings, as making a SparkContext does; begin to load classes for a session.

    Raises PySparkRuntimeError when it does not start.
    """
    from pyspark import SparkContext

    threading.Thread(target=_import_libraries, name="penstock-imports", daemon=True).start()
    SparkContext._ensure_initialized(conf=conf)
    threading.Thread(target=_load_classes, args=(SparkContext._jvm,), name="penstock-classes", daemon=True).start()


def _import_libraries() -> None:
    # PySpark imports pandas as soon as the JVM has started. An import that fails will fail there, too.
    with suppress(Exception):
        import pandas  # noqa: F401
        import pyspark.sql.functions  # noqa: F401


def _load_classes(jvm: Any) -> None:
    try:
        for name in _CLASSES:
            jvm.java.lang.Class.forName(name)
    except Exception as error:  # another release of Spark, or the JVM has ended
        _log.debug("classes were not loaded ahead: %s", error)
