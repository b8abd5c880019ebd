"""Tables of archives, in the formats of Delta and Iceberg: each batch is appended atomically, and once. No queries.

Both libraries work in this process, without a package for Java. The commit of a batch has the archive's id and the
number of the batch, so a batch that comes again changes nothing.

<archive>/_delta_log, queue=.../date=.../          Delta: the archive is the table
<archive>/catalog.db, <archive>/archive/messages/   Iceberg: the catalog, and its table archive.messages
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from headrace.errors import Refused, missing_extra
from headrace.spark.pipelines.endpoint import files_at

if TYPE_CHECKING:
    from pyiceberg.table import Transaction

PARQUET: Final = "parquet"
DELTA: Final = "delta"
ICEBERG: Final = "iceberg"
FORMATS: Final = (PARQUET, DELTA, ICEBERG)
PARTITIONS: Final = ("queue", "date")
_NAMESPACE: Final = "archive"
_CATALOG: Final = "catalog.db"
_TABLE: Final = (_NAMESPACE, "messages")
_BATCH: Final = "headrace.batch."


class ArchiveTable(ABC):
    """A table of messages by queue and date."""

    def __init__(self, directory: Path, archive: str) -> None:
        self._directory = directory.absolute()
        self._archive = archive
        """The id of the archive that appends."""

    @abstractmethod
    def last_batch(self) -> int:
        """Return the number of the last batch that is in the table; -1 for none."""

    @abstractmethod
    def append(self, rows: pa.Table, batch: int) -> None:
        """Append a batch in one commit, with its number."""

    @abstractmethod
    def files(self) -> list[str]:
        """Return the addresses of the Parquet files that the table has now. Raises Refused."""

    def close(self) -> None:  # noqa: B027
        """Close the catalog, where there is one."""


@final
class DeltaArchive(ArchiveTable):
    """A table of Delta, through delta-rs."""

    def last_batch(self) -> int:
        from deltalake import DeltaTable

        if not DeltaTable.is_deltatable(str(self._directory)):
            return -1
        found = DeltaTable(str(self._directory)).transaction_version(self._archive)
        return -1 if found is None else int(found)

    def append(self, rows: pa.Table, batch: int) -> None:
        from deltalake import CommitProperties, Transaction, write_deltalake

        write_deltalake(
            str(self._directory),
            rows,
            partition_by=list(PARTITIONS),
            mode="append",
            schema_mode="merge",
            commit_properties=CommitProperties(app_transactions=[Transaction(self._archive, batch)]),
        )

    def files(self) -> list[str]:
        from deltalake import DeltaTable

        return list(DeltaTable(str(self._directory)).file_uris())


@final
class IcebergArchive(ArchiveTable):
    """A table of Iceberg, through PyIceberg, with a catalog of its own in the archive."""

    def __init__(self, directory: Path, archive: str) -> None:
        super().__init__(directory, archive)
        from pyiceberg.catalog.sql import SqlCatalog

        self._directory.mkdir(parents=True, exist_ok=True)
        place = {"uri": f"sqlite:///{self._directory / _CATALOG}", "warehouse": self._directory.as_uri()}
        self._catalog = SqlCatalog("headrace", **place)
        self._catalog.create_namespace_if_not_exists(_NAMESPACE)

    def last_batch(self) -> int:
        if not self._catalog.table_exists(_TABLE):
            return -1
        return int(self._catalog.load_table(_TABLE).properties.get(_BATCH + self._archive, "-1"))

    def append(self, rows: pa.Table, batch: int) -> None:
        with self._transaction(rows) as transaction:
            with transaction.update_schema() as schema:
                schema.union_by_name(rows.schema)
            transaction.append(rows)
            transaction.set_properties({_BATCH + self._archive: str(batch)})

    def _transaction(self, rows: pa.Table) -> "Transaction":
        """Return a transaction of the table; the first one makes the table, with its partitions."""
        if self._catalog.table_exists(_TABLE):
            return self._catalog.load_table(_TABLE).transaction()
        made = self._catalog.create_table_transaction(_TABLE, rows.schema)
        with made.update_spec() as spec:
            for name in PARTITIONS:
                spec.add_identity(name)
        return made

    def close(self) -> None:
        self._catalog.close()

    def files(self) -> list[str]:
        if not self._catalog.table_exists(_TABLE):
            return []
        found = list(self._catalog.load_table(_TABLE).scan().plan_files())
        if any(task.delete_files for task in found):
            raise Refused(f"{self._directory} has files of deletions, which cannot be read here: compact the table")
        return [task.file.file_path for task in found]


_TABLES: Final[dict[str, Callable[[Path, str], ArchiveTable]]] = {DELTA: DeltaArchive, ICEBERG: IcebergArchive}


def require_format(format_: str) -> None:
    """Raises Unavailable with what to install where the library of this format is missing."""
    try:
        if format_ == DELTA:
            import deltalake  # noqa: F401
        elif format_ == ICEBERG:
            import pyiceberg.catalog.sql  # noqa: F401
    except ImportError as error:
        raise missing_extra(f"an archive in the format {format_}", format_, error) from error


def read_archive(spark: SparkSession, place: str, schema: StructType) -> DataFrame:
    """Return these columns of the messages of an archive of any format; null where an earlier release had none.

    Raises Refused, and Unavailable with what to install.
    """
    reader, directory = spark.read.schema(schema), Path(place)
    format_ = _format_of(directory)
    if format_ == PARQUET:
        return reader.parquet(files_at(place))
    table = open_table(format_, directory, "")
    try:
        files = table.files()
    finally:
        table.close()
    if not files:
        return spark.createDataFrame([], schema)
    if format_ == ICEBERG:
        return reader.parquet(*files)
    # The columns of partitions are in the paths only. Spark takes each escaped byte of them for a letter.
    frame = reader.option("basePath", files_at(place)).parquet(*files)
    return frame.withColumn("queue", F.decode(F.encode("queue", "ISO-8859-1"), "UTF-8"))


def _format_of(directory: Path) -> str:
    """Return the format of an archive, by its files."""
    if (directory / "_delta_log").is_dir():
        return DELTA
    return ICEBERG if (directory / _CATALOG).exists() else PARQUET


def open_table(format_: str, directory: Path, archive: str) -> ArchiveTable:
    """Open the table of an archive. Raises Unavailable with what to install."""
    require_format(format_)
    return _TABLES[format_](directory, archive)
