"""rhea, the AMQP 1.0 client of Node.js: outcomes, credit, drain, anonymous senders, dynamic nodes, errors."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.servers import Server

_PROGRAM = """
const rhea = require('rhea');
const said = {accepted: 0, bodies: [], released: 0, rejected: ''};
const connection = rhea.create_container().connect({
  host: '127.0.0.1', port: Number(process.env.BROKER_PORT), username: 'guest', password: 'guest', reconnect: false,
  idle_time_out: 2000, max_frame_size: 4096,
});
const total = 3000;
let sent = 0;
const sender = connection.open_sender('/queues/rhea');
sender.on('sendable', () => {
  while (sender.sendable() && sent < total) {
    const body = sent === 7 ? 'x'.repeat(100000) : 'message ' + sent;
    sender.send({message_id: sent, application_properties: {number: sent}, body});
    sent++;
  }
});
sender.on('accepted', () => {
  said.accepted++;
  if (said.accepted === total) receive();
});
function receive() {
  const receiver = connection.open_receiver({source: '/queues/rhea', credit_window: 0, autoaccept: false});
  receiver.add_credit(total + 50);
  receiver.on('message', context => {
    const number = context.message.application_properties.number;
    if (number === 5 && !said.again) {
      said.again = true;
      context.delivery.modified({delivery_failed: true, undeliverable_here: false});
      return;
    }
    if (number === 5) said.count = context.message.delivery_count;
    said.bodies.push(number === 7 ? context.message.body.length : number);
    context.delivery.accept();
    if (said.bodies.length === total) receiver.drain_credit();
  });
  receiver.on('receiver_drained', () => { said.drained = true; receiver.close(); lost(); });
}
function lost() {
  const anonymous = connection.open_sender({target: {}});
  anonymous.once('sendable', () => {
    anonymous.send({to: '/exchanges/amq.direct/nobody', body: 'lost'});
    anonymous.send({to: 'missing-queue', body: 'lost'});
  });
  anonymous.on('released', () => { said.released++; });
  anonymous.on('rejected', context => { said.rejected = context.delivery.remote_state.error.condition; dynamic(); });
}
function dynamic() {
  const receiver = connection.open_receiver({source: {dynamic: true}});
  receiver.on('receiver_open', () => {
    connection.open_sender(receiver.source.address).once('sendable', context => context.sender.send({body: 'reply'}));
  });
  receiver.on('message', context => { said.reply = context.message.body; missing(); });
}
function missing() {
  const receiver = connection.open_receiver('missing-queue');
  receiver.on('receiver_error', () => { said.error = receiver.error.condition; connection.close(); });
}
connection.on('connection_close', () => console.log(JSON.stringify(said)));
connection.on('connection_error', context => { console.error(context.connection.error); process.exit(1); });
connection.on('session_error', context => { console.error(context.session.error); process.exit(1); });
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("node")
    command = ["npm", "install", "--no-audit", "--no-fund", "rhea@3"]
    subprocess.run(command, cwd=directory, capture_output=True, check=True)
    (directory / "program.js").write_text(_PROGRAM)
    return directory / "program.js"


def test_rhea_sends_receives_drains_and_sees_errors(server: Server, program: Path, channel: BlockingChannel) -> None:
    channel.queue_declare("rhea", durable=True)
    result = subprocess.run(
        ["node", program.name],
        cwd=program.parent,
        env={**os.environ, "BROKER_PORT": str(server.port)},
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert result.returncode == 0, result.stderr
    said = json.loads(result.stdout)
    assert said["accepted"] == 3000
    expected = [100000 if number == 7 else number for number in range(3000)]
    assert sorted(said["bodies"]) == sorted(expected)
    assert said["count"] == 1
    assert said["drained"] is True
    assert (said["released"], said["rejected"]) == (1, "amqp:not-found")
    assert (said["reply"], said["error"]) == ("reply", "amqp:not-found")
