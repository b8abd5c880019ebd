"""Starting Spark for a command: local, on a cluster or through Connect, with our code on every node. No queries."""

import importlib.util
import logging
import os
import socket
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from pyspark.sql import SparkSession

from headrace.errors import Unavailable
from headrace.spark.interpreter import ensure_python
from headrace.spark.java import ensure_java
from headrace.spark.pipelines.scratch import make_scratch
from headrace.spark.pipelines.shipping import pack, ship, source_directory

LOCAL: Final = "local[*]"
_CONNECT_PORT: Final = 15002
_REACH_SECONDS: Final = 10.0
_VENDORS: Final = {"s3": "AWS_", "gs": "GOOGLE_", "az": "AZURE_"}
"""How the variables begin that say where a vendor's stores are, and who asks."""
_LOGGERS: Final = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
"""Where PySpark writes every error a second time, as JSON."""
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
"""Failures are told by the pipelines themselves, in a line each."""


def open_session(
    master: str = LOCAL, name: str = "headrace", settings: Mapping[str, str] | None = None
) -> SparkSession:
    """A session at this master: `local[*]`, `spark://host:7077` or `sc://host:15002`.

    Raises Unavailable when it cannot be had, with what to install or start.
    """
    for logger in _LOGGERS:
        logging.getLogger(logger).setLevel(logging.CRITICAL)
    if master.startswith("sc://"):
        return _connect(master, name, settings or {})
    home = make_scratch()
    ensure_java()
    _prepare_environment(master, home)
    builder = SparkSession.builder.master(master).appName(name)
    for key, value in {**_settings(master, home), **(settings or {})}.items():
        builder = builder.config(key, value)
    if not master.startswith("local"):
        builder = builder.config("spark.submit.pyFiles", str(pack(home)))
    try:
        return builder.getOrCreate()
    except Exception as error:
        raise Unavailable(f"Spark cannot be started at {master}: {error}") from error


def store_settings(urls: Iterable[str], environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Settings with which executors find these stores as this process does; Spark shows no keys in them to anybody."""
    beginnings = tuple({_VENDORS[scheme] for url in urls if (scheme := urlsplit(url).scheme) in _VENDORS})
    found = {f"spark.executorEnv.{name}": environment[name] for name in environment if name.startswith(beginnings)}
    return {**found, "spark.redaction.regex": "(?i)secret|password|token|key"} if found else {}


def is_connect(spark: SparkSession) -> bool:
    """Whether the session is one of a server's, reached through Spark Connect."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def separate(spark: SparkSession) -> SparkSession:
    """A session beside another, with tables of its own."""
    own = spark.newSession()
    if is_connect(own):
        ship(own)
    return own


def close_separate(own: SparkSession) -> None:
    """Let go of a session that `separate` made; those of one process share what there is to be closed."""
    if is_connect(own):
        own.stop()


def parallelism(spark: SparkSession) -> int:
    """How many tasks run at once; a server that is reached through Connect does not say, and is taken to be like us."""
    return (os.cpu_count() or 1) if is_connect(spark) else int(spark.sparkContext.defaultParallelism)


def _prepare_environment(master: str, home: Path) -> None:
    """What must be set before the first Java process starts; what the user has set stays."""
    if master.startswith("local"):
        ensure_python(home)
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if "SPARK_CONF_DIR" not in os.environ:
        configure_logging(home, _LOGGING)
    # The driver runs streaming sources in processes of their own, which get no files that were shipped.
    source = str(source_directory())
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join([source, *[path for path in paths if path and path != source]])


def configure_logging(home: Path, properties: str) -> None:
    """Have the Java of this process log as these properties say, which are kept in `home`.

    Not by a directory of settings: Java shares no classes between processes where one is on its class path.
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
        "spark.sql.python.filterPushdown.enabled": "true",
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
        raise Unavailable("Spark Connect needs more packages: pip install 'headrace[connect]'")
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
    """Spark itself would try for minutes. Raises Unavailable when nobody listens there."""
    try:
        address = urlsplit(master)
        socket.create_connection((address.hostname or "", address.port or _CONNECT_PORT), _REACH_SECONDS).close()
    except (OSError, ValueError) as error:
        raise Unavailable(f"the Spark Connect server at {master} cannot be reached: {error}") from error
