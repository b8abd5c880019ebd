"""`gs://`: as S3, found by Google's variables and with Google's names for conditions. Google itself is not asked."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.clock import SystemClock
from headrace.cluster.lease import Records
from headrace.config.replication import MAIN
from headrace.errors import Unavailable
from headrace.spark import HeadraceDataSource
from headrace.spark.reader import BatchReader
from headrace.storage.objects.database import prove_fencing
from tests.integration.objects.test_serve import publish
from tests.servers import Server, drain
from tests.stores import Google, within


@pytest.fixture
def google(s3_port: int) -> Iterator[Google]:
    bucket = Google(s3_port)
    with within(bucket.environment):
        yield bucket
    bucket.close()


def test_what_was_confirmed_is_there_after_kill_9_and_spark_reads_it_without_a_broker(
    tmp_path: Path, google: Google
) -> None:
    server = Server(tmp_path, store=google.url)
    server.start()
    publish(server, 30)
    server.close_connections()
    server.kill()

    source = HeadraceDataSource({"url": google.url, "path": "jobs"})
    reader = source.reader(source.schema())
    assert isinstance(reader, BatchReader)
    read = [row for each in reader.partitions() for batch in reader.read(each) for row in batch.to_pylist()]
    assert [row["payload"] for row in read] == [b"%d" % number for number in range(30)]

    server.start()
    assert drain(server.connect().channel(), "jobs", 30) == [b"%d" % number for number in range(30)]
    server.close_connections()
    assert server.stop() == 0


def test_of_two_nodes_one_gets_the_lease(google: Google) -> None:
    one, other = [Records(google.url, MAIN, 30_000) for _ in range(2)]
    one.prove_creation()

    assert one.create("leases/1", b"one")
    assert not other.create("leases/1", b"other")
    assert (other.get("leases/1"), other.names("leases"), other.groups()) == (b"one", ["1"], [MAIN])
    other.put("nodes/a", b"first")
    other.put("nodes/a", b"second")
    other.delete("leases/1")
    assert (one.get("nodes/a"), one.get("leases/1")) == (b"second", None)


def test_a_store_that_does_not_honour_conditions_is_refused(s3_port: int) -> None:
    forgetful = Google(s3_port, forgetful=True)

    with within(forgetful.environment), pytest.raises(Unavailable, match="does not honour conditional writes"):
        prove_fencing(forgetful.url, SystemClock(), 30_000)
    with within(forgetful.environment), pytest.raises(Unavailable, match="does not honour conditional writes"):
        Records(forgetful.url, MAIN, 30_000).prove_creation()
    forgetful.close()
