"""From a device to a consumer: MQTT into a stream, Spark over the stream, AMQP out of the queue behind it."""

import json
from pathlib import Path

from pyspark.sql import SparkSession

from headrace.spark.pipelines.endpoint import Endpoint
from headrace.spark.pipelines.sql import SqlSettings, SqlSource, start_sql
from tests.integration.spark.conftest import Broker
from tests.paho_helpers import Paho
from tests.servers import drain


def test_readings_over_mqtt_reach_an_amqp_consumer_as_alerts(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    channel = broker.declare("telemetry", **{"x-queue-type": "stream"})
    channel.queue_bind("telemetry", "amq.topic", "plant.#")
    broker.declare("alerts")
    source = SqlSource("telemetry", schema="device STRING, temperature DOUBLE")
    query = (
        "SELECT to_json(struct(device, temperature)) AS payload, concat('alerts/', topic) AS topic "
        "FROM telemetry WHERE temperature > 90"
    )
    watch = start_sql(spark, SqlSettings("hot", Endpoint(broker.url), (source,), query, tmp_path / "hot", "alerts"))

    device = Paho(broker.server.mqtt_port, "device-1")
    for number in range(100):
        reading = json.dumps({"device": "d1", "temperature": number + 0.5})
        device.sure("plant/1/temperature", reading)
    alerts = drain(channel, "alerts", 10)
    device.close()
    watch.query.stop()

    assert [json.loads(alert) for alert in alerts] == [
        {"device": "d1", "temperature": number + 0.5} for number in range(90, 100)
    ]
