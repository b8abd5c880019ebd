"""One run of the demo: starts the broker and the pipeline, makes traffic, and ends everything again."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any, Final, final

from headrace.demo.clients import AmqpClient, MqttPublisher
from headrace.demo.traffic import Sensors, Shop
from headrace.errors import Unavailable, missing_extra
from headrace.process import python

_CONFIGURATION: Final = """\
log: {level: warning}
queues:
  - name: telemetry
    type: stream
    topics: ["sensors/#"]
    capture: true
    retention: {max_age: 1h}
  - name: orders
    retry: {max_retries: 3, initial_backoff: 500ms, max_backoff: 2s}
"""
_READY_SECONDS: Final = 30.0
_STOP_SECONDS: Final = 15.0
_FIRST_REPORT_SECONDS: Final = 1.0
_REPORT_SECONDS: Final = 5.0
_WORKERS: Final = 2

Say = Callable[[str], None]


def prepare_spark(environment: dict[str, str], folder: Path) -> None:
    """Set the environment of the pipeline. Raises Unavailable with what to install."""
    if find_spec("pyspark") is None or find_spec("pyarrow") is None:
        raise missing_extra("it", "spark,java", ImportError(name="pyspark"))
    from headrace.spark.java import ensure_java  # loads Spark

    ensure_java(environment, folder)


@final
class Demo:
    """One run of the demo, in a temporary directory."""

    def __init__(self, say: Say, seconds: float, has_spark: bool) -> None:
        self._say = say
        self._seconds = seconds
        self._has_spark = has_spark
        self._chance = Random(7)
        self._shop = Shop(self._chance)
        self._readings = 0
        self._orders = 0
        self._processes: list[subprocess.Popen[str]] = []
        self._stopped = asyncio.Event()

    async def run(self) -> None:
        """Run until the time is over or a signal comes, which ends it quietly.

        Raises Unavailable when the broker does not start or ends.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stopped.set)
        directory = Path(tempfile.mkdtemp(prefix="headrace-demo-"))
        try:
            await self._run_in(directory)
        finally:
            self._end_processes()
            shutil.rmtree(directory, ignore_errors=True)

    async def _run_in(self, directory: Path) -> None:
        self._say("starting a broker in a temporary directory")
        ports = await self._start_broker(directory)
        if self._stopped.is_set():
            return
        self._announce(directory, ports)
        pipeline = asyncio.create_task(self._start_pipeline(directory))
        tasks = [
            asyncio.create_task(self._publish_readings(ports["mqtt"])),
            asyncio.create_task(self._publish_orders(ports["amqp"])),
            asyncio.create_task(self._report()),
            *[asyncio.create_task(self._work(ports["amqp"], number)) for number in range(1, _WORKERS + 1)],
        ]
        stopping = asyncio.create_task(self._stopped.wait())
        done, _ = await asyncio.wait(
            [*tasks, stopping], timeout=self._seconds or None, return_when=asyncio.FIRST_COMPLETED
        )
        for task in (*tasks, stopping, pipeline):
            task.cancel()
        await asyncio.gather(*tasks, stopping, pipeline, return_exceptions=True)
        for task in done - {stopping}:
            raise Unavailable(f"the demo ended early: {task.exception() if not task.cancelled() else 'cancelled'}")
        self._say(self._summary())

    # -- processes ---------------------------------------------------------------------------------------------------

    async def _start_broker(self, directory: Path) -> dict[str, int]:
        """Return the ports; none if the demo is stopped meanwhile."""
        ready, log, file = directory / "ready.json", directory / "broker.log", directory / "headrace.yaml"
        file.write_text(_CONFIGURATION)
        ports = ("--amqp", "0", "--mqtt", "0", "--http", "0", "--ws", "0")
        command = python("-m", "headrace", "serve", "--config", str(file), *ports)
        command += ["--data", str(directory / "data"), "--ready-file", str(ready)]
        with log.open("w") as output:
            process = self._start(command, output, output)
        for _ in range(round(_READY_SECONDS / 0.05)):
            if ready.exists():
                found: dict[str, int] = json.loads(ready.read_text())["ports"]
                return found
            has_ended = process.poll() is not None
            await asyncio.sleep(0.05)  # a Ctrl-C that reached the new broker too is noticed here
            if self._stopped.is_set():
                return {}
            if has_ended:
                break
        raise Unavailable(f"the broker did not start: {log.read_text().strip()}")

    async def _start_pipeline(self, directory: Path) -> None:
        """Start the pipeline beside the traffic, or say why there is none."""
        if not self._has_spark:
            return
        scratch = directory / "spark"
        scratch.mkdir()
        environment = dict(os.environ)
        try:
            await asyncio.to_thread(prepare_spark, environment, scratch / "java")
        except Unavailable as error:
            if not self._stopped.is_set():
                self._say(f"the Spark pipeline is left out: {error}")
            return
        command = python("-m", "headrace.demo.pipeline", str(directory / "data"), str(scratch))
        log = scratch / "spark.log"
        with log.open("w") as errors:
            process = self._start(command, subprocess.PIPE, errors, environment)
        loop = asyncio.get_running_loop()
        assert process.stdout is not None
        output = process.stdout

        def print_line() -> None:
            line = output.readline()
            if line:
                self._say(line.rstrip())
            else:
                loop.remove_reader(output)
                lines = log.read_text().strip().splitlines()
                self._say(f"spark: the pipeline ended: {lines[-1] if lines else 'it said nothing'}")

        loop.add_reader(output, print_line)
        self._say("spark: starting; it reads the stream straight from the data directory")

    def _start(
        self, command: list[str], output: Any, errors: Any, environment: dict[str, str] | None = None
    ) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            text=True,
            start_new_session=True,
            env=environment,
        )
        self._processes.append(process)
        return process

    def _end_processes(self) -> None:
        """End all processes and their children, the last started first."""
        for process in reversed(self._processes):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                pass
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            if process.stdout is not None:
                process.stdout.close()

    # -- traffic -----------------------------------------------------------------------------------------------------

    async def _publish_readings(self, port: int) -> None:
        sensors = Sensors(self._chance)
        publisher = await MqttPublisher.connect(port, "demo-gateway")
        while True:
            for topic, payload in sensors.readings():
                await publisher.publish(topic, payload)
                self._readings += 1
            await asyncio.sleep(0.25)

    async def _publish_orders(self, port: int) -> None:
        client = await AmqpClient.connect(port, "demo-shop")
        await client.confirm()
        while True:
            await client.publish("orders", self._shop.order())
            self._orders += 1
            await asyncio.sleep(self._chance.uniform(0.02, 0.2))

    async def _work(self, port: int, number: int) -> None:
        client = await AmqpClient.connect(port, f"demo-worker-{number}")
        await client.work("orders", self._shop.handle)

    # -- output ------------------------------------------------------------------------------------------------------

    def _announce(self, directory: Path, ports: dict[str, int]) -> None:
        here = "127.0.0.1"
        self._say(f"a broker is running in {directory}, with two queues: telemetry (a stream) and orders (work)")
        self._say(f"  dashboard  http://{here}:{ports['http']}/   log in as guest, password guest")
        self._say(f"  MQTT       mqtt://{here}:{ports['mqtt']}   sensors/# from 12 boilers at 3 sites")
        self._say(
            f"  AMQP       amqp://guest:guest@{here}:{ports['amqp']}/   orders, and workers that fail now and then"
        )
        self._say(f"  dead letters are in the queue $dlq/orders: headrace dlq list --url http://{here}:{ports['http']}")
        self._say("Ctrl-C ends it and removes everything")

    async def _report(self) -> None:
        await asyncio.sleep(_FIRST_REPORT_SECONDS)
        while True:
            self._say(self._summary())
            await asyncio.sleep(_REPORT_SECONDS)

    def _summary(self) -> str:
        shop = self._shop
        return (
            f"{self._readings} readings over MQTT; {self._orders} orders over AMQP: {shop.done} done, "
            f"{shop.failed} failed and tried again, {shop.rejected} rejected to the dead letters"
        )
