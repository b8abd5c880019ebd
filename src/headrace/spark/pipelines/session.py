"""Spark sessions of pipelines, with our code on every node and a scratch directory. No queries.

A process locks the file `lock` of its scratch directory. The next process removes directories whose lock is free: a
killed process left them.
"""

import atexit
import fcntl
import importlib.util
import io
import logging
import os
import shutil
import socket
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import IO, Final
from urllib.parse import urlsplit

import mypy_extensions
from pyspark.sql import SparkSession

from headrace import errors
from headrace.errors import Refused, Unavailable, missing_extra
from headrace.spark.interpreter import ensure_python
from headrace.spark.java import ensure_java
from headrace.spark.source import HeadraceDataSource

_PREFIX: Final = "headrace-spark-"
_LOCK: Final = "lock"
_NEEDED: Final = (
    "pyspark_headrace/**/*.py",
    "headrace/*.py",
    "headrace/config/*.py",
    "headrace/selector/**/*.py",
    "headrace/storage/**/*.py",
    "headrace/wire/*.py",
    "headrace/spark/**/*.py",
)
"""Files that an executor may load: nothing of the server."""
LOCAL: Final = "local[*]"
_CONNECT_PORT: Final = 15002
_REACH_SECONDS: Final = 10.0
_VENDORS: Final = {"s3": "AWS_", "gs": "GOOGLE_", "az": "AZURE_"}
"""Prefixes of the variables with the address and credentials of each vendor's stores."""
_LOGGERS: Final = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
"""Loggers where PySpark writes every error a second time, as JSON."""
_LOGGING: Final = """\
rootLogger.level = error
rootLogger.appenderRef.f.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d %p %c{1}: %m%n
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
logger.stream.name = org.apache.spark.sql.execution.streaming
logger.stream.level = off
logger.tasks.name = org.apache.spark.scheduler
logger.tasks.level = off
logger.executor.name = org.apache.spark.executor
logger.executor.level = off
logger.sources.name = org.apache.spark.sql.execution.datasources.v2
logger.sources.level = off
"""
"""Pipelines report their failures themselves, in a line each."""


def open_session(
    master: str = LOCAL,
    name: str = "headrace",
    settings: Mapping[str, str] | None = None,
    queries: Iterable[str] = (),
) -> SparkSession:
    """Open a session at this master: `local[*]`, `spark://host:7077` or `sc://host:15002`.

    Raises Unavailable with what to install or start. Raises Refused when Spark's parser does not take one of the
    queries, which is known before Spark itself starts; a server of Spark Connect parses them later.
    """
    for logger in _LOGGERS:
        logging.getLogger(logger).setLevel(logging.CRITICAL)
    if master.startswith("sc://"):
        return _connect(master, name, settings or {})
    home = make_scratch()
    ensure_java()
    _prepare_environment(master, home)
    chosen = {"spark.master": master, "spark.app.name": name, **_settings(master, home), **(settings or {})}
    if not master.startswith("local"):
        chosen["spark.submit.pyFiles"] = str(pack(home))
    builder = SparkSession.builder
    for key, value in chosen.items():
        builder = builder.config(key, value)
    try:
        with _safe_path(master):
            _parse(queries, chosen)
            return builder.getOrCreate()
    except Refused:
        raise
    except Exception as error:
        raise Unavailable(f"Spark cannot be started at {master}: {error}") from error


def _parse(queries: Iterable[str], settings: Mapping[str, str]) -> None:
    """Parse queries in the Java process that the session uses later. Raises Refused."""
    waiting = list(queries)
    if not waiting:
        return
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
    from pyspark import SparkConf, SparkContext

    conf = SparkConf(loadDefaults=False)
    for key, value in settings.items():
        conf.set(key, value)
    SparkContext._ensure_initialized(conf=conf)
    assert SparkContext._jvm is not None
    parser = SparkContext._jvm.org.apache.spark.sql.catalyst.parser.CatalystSqlParser()
    for query in waiting:
        try:
            parser.parsePlan(query)
        except Py4JJavaError as error:
            lines = [line for line in str(error.java_exception.getMessage()).splitlines() if line.strip()]
            raise Refused(f"the query cannot be read: {' '.join(lines[:1])}") from error


@contextmanager
def _safe_path(master: str) -> Iterator[None]:
    """Start Java so that Spark's Pythons import nothing from the current directory.

    They inherit the environment of Java. This process restores its own, for other programs that it starts.
    """
    if not master.startswith("local") or "PYTHONSAFEPATH" in os.environ:
        yield
        return
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        yield
    finally:
        del os.environ["PYTHONSAFEPATH"]


def store_settings(urls: Iterable[str], environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return settings that give executors this process's access to these stores, and hide secrets in Spark's pages."""
    beginnings = tuple({_VENDORS[scheme] for url in urls if (scheme := urlsplit(url).scheme) in _VENDORS})
    found = {f"spark.executorEnv.{name}": environment[name] for name in environment if name.startswith(beginnings)}
    return {**found, "spark.redaction.regex": "(?i)secret|password|token|key"} if found else {}


def is_connect(spark: SparkSession) -> bool:
    """Return whether the session goes through Spark Connect."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def separate(spark: SparkSession) -> SparkSession:
    """Open a session beside another, with tables of its own."""
    own = spark.newSession()
    if is_connect(own):
        ship(own)
    return own


def close_separate(own: SparkSession) -> None:
    """Close a session of `separate`. Sessions of one process share everything, so only those of Connect are closed."""
    if is_connect(own):
        own.stop()


def activate(spark: SparkSession) -> None:
    """Make a session the active one of this thread; Spark looks its data sources up there."""
    if not is_connect(spark):
        assert spark._jvm is not None
        SparkSession._get_j_spark_session_class(spark._jvm).setActiveSession(spark._jsparkSession)


def parallelism(spark: SparkSession) -> int:
    """Return the number of tasks that run at once. A Connect server does not tell, so this machine's cores stand in."""
    return (os.cpu_count() or 1) if is_connect(spark) else int(spark.sparkContext.defaultParallelism)


def _prepare_environment(master: str, home: Path) -> None:
    """Set the variables of the first Java process; variables of the user stay."""
    if master.startswith("local"):
        ensure_python(home)
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if "SPARK_CONF_DIR" not in os.environ:
        configure_logging(home, _LOGGING)
    # The driver runs streaming sources in processes of their own, which do not get the packed code.
    source = str(source_directory())
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join([source, *[path for path in paths if path and path != source]])


def configure_logging(home: Path, properties: str) -> None:
    """Configure the log of this process's Java by a file in `home`.

    A directory of settings would be on the class path, and Java would then share no classes between processes.
    """
    file = home / "log4j2.properties"
    file.write_text(properties)
    given = os.environ.get("SPARK_SUBMIT_OPTS", "")
    os.environ["SPARK_SUBMIT_OPTS"] = f"{given} -Dlog4j2.configurationFile={file.as_uri()}".strip()


def _settings(master: str, home: Path) -> dict[str, str]:
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
    }
    if master.startswith("local"):
        cores = os.cpu_count() or 1
        settings |= {
            "spark.sql.shuffle.partitions": str(2 * cores),
            "spark.sql.warehouse.dir": str(home / "warehouse"),
            "spark.local.dir": str(home / "local"),
        }
    return settings


def _connect(master: str, name: str, settings: Mapping[str, str]) -> SparkSession:
    if importlib.util.find_spec("grpc") is None:
        raise missing_extra("Spark Connect", "connect", ImportError(name="grpc"))
    _check_reachable(master)
    builder = SparkSession.builder.remote(master).appName(name)
    chosen = {"spark.sql.session.timeZone": "UTC", "spark.sql.execution.arrow.maxRecordsPerBatch": "20000", **settings}
    for key, value in chosen.items():
        builder = builder.config(key, value)
    try:
        session = builder.getOrCreate()
        ship(session)
    except Exception as error:
        raise Unavailable(f"the Spark Connect server at {master} cannot be reached: {error}") from error
    return session


def _check_reachable(master: str) -> None:
    """Raise Unavailable when nobody listens there; Spark itself would try for minutes."""
    try:
        address = urlsplit(master)
        socket.create_connection((address.hostname or "", address.port or _CONNECT_PORT), _REACH_SECONDS).close()
    except (OSError, ValueError) as error:
        raise Unavailable(f"the Spark Connect server at {master} cannot be reached: {error}") from error


# -- our code on every node --------------------------------------------------------------------------------------------


def source_directory() -> Path:
    """Return the directory of our packages."""
    return Path(errors.__file__).parents[1]


def pack(directory: Path) -> Path:
    """Pack our code for executors into one file; Python only, because it cannot hold compiled modules."""
    target = directory / "headrace.zip"
    target.write_bytes(_packed())
    return target


def ship(session: SparkSession) -> None:
    """Send our code and our data source to a Connect server, for as long as the session lives.

    The server uses them for batches and in executors. Its streams need an installed Headrace.
    """
    with tempfile.TemporaryDirectory() as directory:
        session.addArtifacts(str(pack(Path(directory))), pyfile=True)
    session.dataSource.register(HeadraceDataSource)


@cache
def _packed() -> bytes:
    source = source_directory()
    found = io.BytesIO()
    with zipfile.ZipFile(found, "w", zipfile.ZIP_DEFLATED) as archive:
        for each in _NEEDED:
            for file in sorted(source.glob(each)):
                archive.write(file, file.relative_to(source))
        archive.write(mypy_extensions.__file__, "mypy_extensions.py")  # the only dependency besides Spark and Arrow
    return found.getvalue()


# -- scratch directories -----------------------------------------------------------------------------------------------


def make_scratch() -> Path:
    """Make a directory that is removed when this process ends."""
    _sweep()
    directory = Path(tempfile.mkdtemp(prefix=_PREFIX))
    lock = (directory / _LOCK).open("w")
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    atexit.register(_remove, directory, lock)
    return directory


def _remove(directory: Path, lock: IO[str]) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    lock.close()


def _sweep() -> None:
    """Remove the directories of ended processes."""
    for file in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*/{_LOCK}"):
        try:
            with file.open("r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(file.parent, ignore_errors=True)
        except OSError:
            continue  # in use, removed meanwhile, or another user's
