"""One Spark session for a whole test run: starting one takes many seconds. No tests here."""

import os
import socket
from functools import cache

from pyspark.sql import SparkSession

from headrace.spark.interpreter import ensure_python
from headrace.spark.java import ensure_java
from headrace.spark.pipelines.session import configure_logging, make_scratch
from tests.stores import environment_of, within

_LOGGING = """\
rootLogger.level = off
"""


@cache
def store_listener() -> socket.socket:
    """The place where Spark's own processes look for S3, as their environment is what it was when the session began."""
    return socket.create_server(("127.0.0.1", 0))


@cache
def session() -> SparkSession:
    """A local session with two cores, without a UI, as quiet as it gets."""
    home = make_scratch()
    configure_logging(home, _LOGGING)
    ensure_java()
    ensure_python(home)
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(home / "warehouse"),
        "spark.local.dir": str(home / "local"),
        "spark.sql.streaming.checkpointFileManagerClass": (
            "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
        ),
    }
    builder = SparkSession.builder.master("local[2]").appName("headrace-tests")
    for name, value in settings.items():
        builder = builder.config(name, value)
    with within(environment_of(store_listener().getsockname()[1])):
        return builder.getOrCreate()
