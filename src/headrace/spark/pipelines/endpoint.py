"""The place where a pipeline reads and writes: broker, data directory or store. No queries."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from pyspark.sql import DataFrame, SparkSession

from headrace.spark.client import Client
from headrace.spark.place import schema_of

FORMAT = "headrace"


@dataclass(frozen=True)
class Endpoint:
    """A broker's HTTP address, or a data directory or a store that is only read."""

    url: str
    vhost: str = "/"
    user: str = ""
    password: str = field(default="", repr=False)
    replication_group: str = ""
    """The group of a store to read; "" for the main group."""

    @property
    def is_broker(self) -> bool:
        return self.url.startswith(("http://", "https://"))

    @property
    def options(self) -> dict[str, str]:
        """The options of all reads and writes."""
        given = {"url": self.url, "vhost": self.vhost, "user": self.user, "password": self.password}
        given["group"] = self.replication_group
        return {name: value for name, value in given.items() if value}

    def read(self, spark: SparkSession, queues: str, **options: str) -> DataFrame:
        """Return the messages of these queues as a table."""
        return spark.read.format(FORMAT).options(**self.options, **options).load(queues)

    def stream(self, spark: SparkSession, queues: str, columns: Sequence[str] = (), **options: str) -> DataFrame:
        """Return the messages of these queues as a stream, with these columns or the columns of the options."""
        reader = spark.readStream.format(FORMAT).options(**self.options, **options)
        return (reader.schema(schema_of(columns)) if columns else reader).load(queues)


def declare_queue(client: Client, vhost: str, queue: str, type_: str) -> None:
    """Declare a durable queue of this type, which a pipeline fills. Raises Refused."""
    client.json("PUT", f"/api/v1/queues/{quote(vhost, safe='')}/{quote(queue, safe='')}", {}, {"type": type_})


def files_at(place: str) -> str:
    """Return an address that Spark finds: a path relative to this process becomes absolute, a URL stays."""
    return str(Path(place).absolute()) if place and "://" not in place else place
