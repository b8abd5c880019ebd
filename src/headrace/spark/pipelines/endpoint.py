"""Where a pipeline reads and writes: broker, data directory or store, as options of the data source. No queries."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from headrace.spark.columns import schema_of

FORMAT = "headrace"


@dataclass(frozen=True)
class Endpoint:
    """A broker's HTTP address, or a data directory or a store that is only read."""

    url: str
    vhost: str = "/"
    user: str = ""
    password: str = field(default="", repr=False)
    replication_group: str = ""
    """Of a store: which of its groups is read; the one that all have without."""

    @property
    def is_broker(self) -> bool:
        return self.url.startswith(("http://", "https://"))

    @property
    def options(self) -> dict[str, str]:
        """The options that all reads and writes have in common."""
        said = {"url": self.url, "vhost": self.vhost, "user": self.user, "password": self.password}
        said["group"] = self.replication_group
        return {name: value for name, value in said.items() if value}

    def read(self, spark: SparkSession, queues: str, **options: str) -> DataFrame:
        """The messages of these queues as a table."""
        return spark.read.format(FORMAT).options(**self.options, **options).load(queues)

    def stream(self, spark: SparkSession, queues: str, columns: Sequence[str] = (), **options: str) -> DataFrame:
        """The messages of these queues as a stream; of these columns, or of those that the options say."""
        reader = spark.readStream.format(FORMAT).options(**self.options, **options)
        return (reader.schema(schema_of(columns)) if columns else reader).load(queues)


def files_at(place: str) -> str:
    """Where files are, for Spark to find: a path means this process's directory; other stores have whole addresses."""
    return str(Path(place).absolute()) if place and "://" not in place else place
