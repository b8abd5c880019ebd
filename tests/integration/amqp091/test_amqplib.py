"""amqplib, the usual client of Node.js: confirms, headers, prefetch, returns and errors as a Node program sees them."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.servers import Server

_PROGRAM = """
const amqp = require('amqplib');
(async () => {
  const said = {};
  const connection = await amqp.connect(process.env.BROKER_URL);
  connection.on('error', () => {});
  const channel = await connection.createConfirmChannel();
  channel.on('return', message => { said.returned = message.fields.replyCode; });
  await channel.assertExchange('node.topic', 'topic', {durable: true});
  const {queue} = await channel.assertQueue('node.queue', {durable: true, arguments: {'x-max-priority': 5}});
  await channel.bindQueue(queue, 'node.topic', 'a.*');
  for (let number = 0; number < 200; number++) {
    const options = {persistent: true, headers: {number, f: 1.5, ok: true}};
    channel.publish('node.topic', 'a.b', Buffer.from(String(number)), options);
  }
  channel.publish('', 'nowhere', Buffer.from('lost'), {mandatory: true});
  await channel.waitForConfirms();
  await channel.prefetch(10);
  said.bodies = [];
  said.headers = null;
  await new Promise(resolve => channel.consume(queue, message => {
    said.bodies.push(Number(message.content));
    said.headers = said.headers || message.properties.headers;
    channel.ack(message);
    if (said.bodies.length === 200) resolve();
  }));
  said.left = (await channel.checkQueue(queue)).messageCount;
  const other = await connection.createChannel();
  other.on('error', () => {});
  said.code = await other.checkQueue('missing').then(() => 0, error => error.code);
  await connection.close();
  console.log(JSON.stringify(said));
})().catch(error => { console.error(error); process.exit(1); });
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("node")
    command = ["npm", "install", "--no-audit", "--no-fund", "amqplib@0.10"]
    subprocess.run(command, cwd=directory, capture_output=True, check=True)
    (directory / "program.js").write_text(_PROGRAM)
    return directory / "program.js"


def test_amqplib_publishes_consumes_and_sees_errors(server: Server, program: Path) -> None:
    result = subprocess.run(
        ["node", program.name],
        cwd=program.parent,
        env={**os.environ, "BROKER_URL": server.url},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert result.returncode == 0, result.stderr
    said = json.loads(result.stdout)
    assert said["bodies"] == list(range(200))
    assert said["headers"] == {"number": 0, "f": 1.5, "ok": True}
    assert (said["returned"], said["left"], said["code"]) == (312, 0, 404)
