"""Publishers wait only while there is a reason to, seen from outside of a real process."""

from pathlib import Path

import httpx
import pytest

from tests.servers import Server, serving

_LIMIT = {"HEADRACE_LIMITS_UNWRITTEN_BYTES": "1MiB"}
_BODY = b"x" * 50_000


@pytest.mark.timeout(60)
def test_messages_that_are_consumed_at_once_from_memory_never_block_their_publishers(tmp_path: Path) -> None:
    with serving(Server(tmp_path, environment=_LIMIT)) as server:
        reader = server.connect().channel()
        queue = reader.queue_declare("", exclusive=True).method.queue
        reader.queue_bind(queue, "amq.fanout")
        came: list[int] = []
        reader.basic_consume(queue, lambda *parts: came.append(len(parts[3])), auto_ack=True)
        publisher = server.connect(blocked_connection_timeout=20)
        told: list[object] = []
        publisher.add_on_connection_blocked_callback(lambda *_: told.append("blocked"))
        channel = publisher.channel()

        for number in range(100):
            channel.basic_publish("amq.fanout", "", _BODY)
            publisher.process_data_events(0)
            while len(came) <= number:
                reader.connection.process_data_events(0.05)
                publisher.process_data_events(0)
                assert not told, f"blocked after {number} messages that were all consumed"

        metrics = httpx.get(f"{server.http_url}/metrics", auth=("guest", "guest"), timeout=30, verify=False).text
        assert 'headrace_publishers_blocked{vhost="/"} 0' in metrics
