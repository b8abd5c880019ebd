"""The same broker over every transport: paho-mqtt and MQTT.js over WebSocket, with and without TLS; MQTT with TLS."""

import json
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from tests.certificates import Authority
from tests.paho_helpers import SECONDS, Paho, wait_for
from tests.servers import Server, drain, serving

_PROGRAM = """
const mqtt = require('mqtt');
(async () => {
  const said = {};
  const version = Number(process.env.VERSION);
  const options = {protocolVersion: version, username: 'guest', password: 'guest', clientId: process.env.NAME,
                   reconnectPeriod: 0};
  if (process.env.CA) options.ca = [require('fs').readFileSync(process.env.CA)];
  const client = await mqtt.connectAsync(process.env.BROKER_URL, options);
  const room = process.env.NAME;
  said.received = [];
  const all = new Promise(resolve => client.on('message', (topic, payload, packet) => {
    said.received.push([topic, payload.length, packet.qos]);
    if (packet.properties && packet.properties.userProperties) said.user = packet.properties.userProperties;
    if (said.received.length === 6) resolve();
  }));
  said.granted = (await client.subscribeAsync(`${room}/#`, {qos: 2})).map(one => one.qos);
  const properties = version === 5 ? {userProperties: {k: ['1', '2']}, contentType: 'text/plain'} : undefined;
  for (const qos of [0, 1, 2]) await client.publishAsync(`${room}/${qos}`, 'x'.repeat(10), {qos, properties});
  for (const size of [200, 70000, 3000000]) await client.publishAsync(`${room}/large`, Buffer.alloc(size), {qos: 1});
  await all;
  await client.publishAsync(`$queue/${room}`, 'job', {qos: 1});
  await client.endAsync();
  console.log(JSON.stringify(said));
})().catch(error => { console.error(error); process.exit(1); });
"""


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[Server]:
    certificate, key = authority.sign("localhost")
    options = ["--tls-cert", str(certificate), "--tls-key", str(key), *_any("amqps", "mqtts", "https")]
    with serving(Server(tmp_path_factory.mktemp("server"), True, options)) as running:
        yield running


def _any(*names: str) -> list[str]:
    return [word for name in names for word in (f"--{name}", "0")]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("node")
    command = ["npm", "install", "--no-audit", "--no-fund", "mqtt@5"]
    subprocess.run(command, cwd=directory, capture_output=True, check=True)
    (directory / "program.js").write_text(_PROGRAM)
    return directory / "program.js"


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("way", ["ws", "http", "https"])
def test_mqtt_js_over_websocket(server: Server, program: Path, authority: Authority, way: str, version: int) -> None:
    name = f"js-{way}-{version}"
    channel = server.connect().channel()
    channel.queue_declare(name, durable=True)
    scheme = "wss" if way == "https" else "ws"
    result = subprocess.run(
        ["node", program.name],
        cwd=program.parent,
        env={
            **os.environ,
            "BROKER_URL": f"{scheme}://localhost:{server.ports[way]}/mqtt",
            "NAME": name,
            "VERSION": str(version),
            "CA": str(authority.path) if way == "https" else "",
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    told = json.loads(result.stdout)
    small, large = told["received"][:3], told["received"][3:]
    assert small == [[f"{name}/{qos}", 10, qos] for qos in (0, 1, 2)]
    assert large == [[f"{name}/large", size, 1] for size in (200, 70_000, 3_000_000)]
    assert told["granted"] == [2]
    if version == 5:
        assert told["user"] == {"k": ["1", "2"]}
    assert drain(channel, name, 1) == [b"job"]


@pytest.mark.parametrize("version", [paho.MQTTv311, paho.MQTTv5])
@pytest.mark.parametrize("way", ["ws", "http", "https"])
def test_paho_over_websocket(server: Server, authority: Authority, way: str, version: MQTTProtocolVersion) -> None:
    client = paho.Client(CallbackAPIVersion.VERSION2, f"ws-{way}-{version}", protocol=version, transport="websockets")
    client.ws_set_options("/mqtt")
    if way == "https":
        client.tls_set(str(authority.path))
    topic = f"paho/{way}/{version}"

    received = conversation(client, server.ports[way], topic)

    assert [(message.payload, message.qos) for message in received] == [(b"%d" % qos, qos) for qos in (0, 1, 2)]


def conversation(client: paho.Client, port: int, topic: str) -> list[paho.MQTTMessage]:
    """What a client gets of three messages that it publishes, one at each QoS."""
    received: list[paho.MQTTMessage] = []
    subscribed = threading.Event()
    client.username_pw_set("guest", "guest")
    client.on_connect = lambda *_: client.subscribe(topic, 2) and None
    client.on_subscribe = lambda *_: subscribed.set()
    client.on_message = lambda client, data, message: received.append(message)
    client.connect("localhost", port)
    client.loop_start()
    try:
        assert subscribed.wait(SECONDS)
        for qos in (0, 1, 2):
            client.publish(topic, b"%d" % qos, qos).wait_for_publish(SECONDS)
        wait_for(lambda: len(received) == 3)
    finally:
        client.disconnect()
        client.loop_stop()
    return received


@pytest.mark.parametrize("version", [paho.MQTTv311, paho.MQTTv5])
def test_mqtt_with_tls(server: Server, authority: Authority, version: MQTTProtocolVersion) -> None:
    client = paho.Client(CallbackAPIVersion.VERSION2, f"tls-{version}", protocol=version)
    client.tls_set(str(authority.path))

    received = conversation(client, server.ports["mqtts"], f"tls/{version}")

    assert [message.qos for message in received] == [0, 1, 2]


def test_all_transports_are_one_broker(server: Server) -> None:
    subscriber = Paho(server.mqtt_port, "tcp")
    subscriber.subscribe("shared/topic", 1)

    for way in ("ws", "http"):
        client = paho.Client(CallbackAPIVersion.VERSION2, f"pub-{way}", transport="websockets")
        conversation(client, server.ports[way], "shared/topic")

    wait_for(lambda: len(subscriber.messages) == 6)
    subscriber.close()
