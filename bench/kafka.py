"""Spark's Kafka source beside ours, each with its own broker, in one session: batch read, stream read, write.

    python -m bench.kafka [--messages 500000] [--rounds 3] [--jars ~/.cache/headrace-kafka]

Maven fetches Kafka, which runs in KRaft mode as one node, and the newest connector of Spark that it has. Contenders
take turns. CPU is that of Spark (Java and Python) and of each broker apart. Kafka stores without a sync, as it does
unless it is told otherwise; Headrace answers after the sync.
"""

import argparse
import base64
import os
import shutil
import socket
import subprocess
import tempfile
import time
import uuid
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from bench.spark import PAYLOAD_BYTES, Broker, Contest, consume, make_session, ratio

PROJECT = Path(__file__).parent / "maven"
START_SECONDS = 120.0
PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
log.dirs={folder}/logs
num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
"""


def fetch(jars: Path) -> None:
    """Have Maven fetch the server and the connector, unless they are there."""
    for name in ("server", "connector"):
        if not any((jars / name).glob("kafka-clients-*.jar")):
            pom = str(PROJECT / f"{name}.xml")
            target = f"-DoutputDirectory={jars / name}"
            command = ["mvn", "-q", "-B", "-f", pom, "dependency:copy-dependencies", target]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


class Kafka:
    """One node of Kafka, broker and controller in one."""

    def __init__(self, folder: Path, jars: Path) -> None:
        self._folder = folder / "maven"
        self._folder.mkdir()
        port = free_port()
        self.address = f"127.0.0.1:{port}"
        properties = self._folder / "server.properties"
        properties.write_text(PROPERTIES.format(port=port, controller=free_port(), folder=self._folder))
        java = shutil.which("java") or f"{os.environ['JAVA_HOME']}/bin/java"
        self._java = [java, "-Xmx512m", "-cp", f"{jars / 'server'}/*"]
        words = ["kafka.tools.StorageTool", "format", "-t", _cluster_id(), "-c", str(properties)]
        subprocess.run([*self._java, *words], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        with (self._folder / "log").open("wb") as log:
            self._process = subprocess.Popen([*self._java, "kafka.Kafka", str(properties)], stdout=log, stderr=log)
        deadline = time.monotonic() + START_SECONDS
        while not _listens(port):
            assert self._process.poll() is None, (self._folder / "log").read_text()[-2000:]
            assert time.monotonic() < deadline, (self._folder / "log").read_text()[-2000:]
            time.sleep(0.1)

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(60)


def _cluster_id() -> str:
    """Return an id of 22 letters, as Kafka has them."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


class Bench:
    """The contenders over one session, with the same rows in both brokers."""

    def __init__(self, spark: SparkSession, broker: Broker, kafka: Kafka, folder: Path, messages: int) -> None:
        self._spark = spark
        self._broker = broker
        self._kafka = kafka
        self._folder = folder
        self._messages = messages
        self._checkpoints = iter(range(10_000))
        source = str(folder / "source.parquet")
        text = f"CAST(rpad(CAST(id AS STRING), {PAYLOAD_BYTES}, 'x') AS BINARY)"
        spark.range(messages).selectExpr(f"{text} AS payload").write.parquet(source)
        self._rows = spark.read.parquet(source)
        broker.declare("orders", "sink")
        self.write_ours("orders")
        self.write_kafka("orders")

    def write_ours(self, queue: str) -> None:
        self._rows.write.format("headrace").option("url", self._broker.url).mode("append").save(queue)

    def write_kafka(self, topic: str) -> None:
        writer = self._rows.selectExpr("payload AS value").write.format("kafka")
        writer.option("kafka.bootstrap.servers", self._kafka.address).option("topic", topic).save()

    def read_ours(self, url: str) -> None:
        consume(self._spark.read.format("headrace").option("url", url).load("orders"))

    def read_kafka(self) -> None:
        reader = self._spark.read.format("kafka").option("kafka.bootstrap.servers", self._kafka.address)
        consume(reader.option("subscribe", "orders").load())

    def stream_ours(self, url: str) -> None:
        self._stream(self._spark.readStream.format("headrace").option("url", url).load("orders"))

    def stream_kafka(self) -> None:
        reader = self._spark.readStream.format("kafka").option("kafka.bootstrap.servers", self._kafka.address)
        self._stream(reader.option("startingOffsets", "earliest").option("subscribe", "orders").load())

    def _stream(self, frame: DataFrame) -> None:
        checkpoint = str(self._folder / f"cp{next(self._checkpoints)}")
        query = frame.writeStream.format("noop").option("checkpointLocation", checkpoint)
        started = query.trigger(availableNow=True).start()
        started.awaitTermination()
        rows = sum(each.numInputRows for each in started.recentProgress)
        assert rows == self._messages, f"{rows:,} of {self._messages:,} rows"

    def run(self, rounds: int) -> None:
        directory = str(self._broker.data)
        reading = Contest(f"Batch read of {self._messages:,} messages of {PAYLOAD_BYTES} B", self._messages)
        reading.add("kafka", self.read_kafka)
        reading.add("headrace, data directory", lambda: self.read_ours(directory))
        reading.add("headrace, through the broker", lambda: self.read_ours(self._broker.url))
        streaming = Contest("Stream read, a query from its start to the end of what is there", self._messages)
        streaming.add("kafka", self.stream_kafka)
        streaming.add("headrace, data directory", lambda: self.stream_ours(directory))
        streaming.add("headrace, through the broker", lambda: self.stream_ours(self._broker.url))
        writing = Contest("Batch write", self._messages)
        writing.add("kafka", lambda: self.write_kafka("sink"))
        writing.add("headrace, through the broker", lambda: self.write_ours("sink"))
        for contest in (streaming, writing, reading):  # what comes last is compiled best
            contest.run(rounds)
            contest.report()
            for name in contest.wall:
                if name != "kafka":
                    found = contest.cpu_us("kafka") / contest.cpu_us(name)
                    ratio(f"Kafka's CPU as a multiple of ours, {name}", found, 1.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=500_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--jars", type=Path, default=Path.home() / ".cache" / "headrace-kafka")
    arguments = parser.parse_args()
    fetch(arguments.jars)
    connector = ",".join(str(path) for path in sorted((arguments.jars / "connector").glob("*.jar")))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        spark = make_session(folder, {"spark.jars": connector})
        kafka = Kafka(folder, arguments.jars)
        broker = Broker(folder)
        try:
            Bench(spark, broker, kafka, folder, arguments.messages).run(arguments.rounds)
        finally:
            spark.stop()
            broker.stop()
            kafka.stop()


if __name__ == "__main__":
    main()
