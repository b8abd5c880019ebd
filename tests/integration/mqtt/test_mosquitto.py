"""mosquitto_pub and mosquitto_sub against a real server, without credentials."""

import subprocess

import pytest

from tests.servers import Server

SECONDS = 60


def start_sub(server: Server, *arguments: str) -> subprocess.Popen[str]:
    """A subscriber that is subscribed."""
    command = ["stdbuf", "-oL", "mosquitto_sub", "-d", "-p", str(server.mqtt_port), *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if "Subscribed" in line:
            return process
    raise AssertionError("mosquitto_sub was not subscribed")


def lines(process: subprocess.Popen[str]) -> list[str]:
    output, _ = process.communicate(timeout=SECONDS)
    return [line for line in output.splitlines() if not line.startswith("Client ")]


def pub(server: Server, *arguments: str) -> None:
    subprocess.run(["mosquitto_pub", "-p", str(server.mqtt_port), *arguments], check=True, timeout=SECONDS)


@pytest.mark.parametrize("version", ["mqttv31", "mqttv311", "mqttv5"])
@pytest.mark.parametrize("qos", ["0", "1", "2"])
def test_a_message_arrives(server: Server, version: str, qos: str) -> None:
    sub = start_sub(server, "-V", version, "-t", f"m/{version}/{qos}", "-q", qos, "-C", "1", "-v")
    pub(server, "-V", version, "-t", f"m/{version}/{qos}", "-q", qos, "-m", "hello")
    assert lines(sub) == [f"m/{version}/{qos} hello"]


def test_retained_messages_and_system_topics(server: Server) -> None:
    pub(server, "-t", "kept/1", "-m", "one", "-r", "-q", "1")
    pub(server, "-t", "kept/2", "-m", "two", "-r")
    command = ["mosquitto_sub", "-p", str(server.mqtt_port), "-W", "5", "-v"]
    kept = subprocess.run([*command, "-t", "kept/+", "-C", "2"], capture_output=True, text=True, timeout=SECONDS)
    assert sorted(kept.stdout.splitlines()) == ["kept/1 one", "kept/2 two"]
    version = subprocess.run(
        [*command, "-t", "$SYS/broker/version", "-C", "1"], capture_output=True, text=True, timeout=SECONDS
    )
    assert version.stdout.startswith("$SYS/broker/version headrace ")


def test_a_consumer_group_from_the_command_line(server: Server) -> None:
    server.connect().channel().queue_declare("orders", durable=True)
    sub = start_sub(
        server, "-V", "mqttv5", "-t", "$queue/orders/#", "-q", "1", "-C", "2", "-v",
        "-D", "subscribe", "user-property", "consumer-group", "workers",
    )  # fmt: skip
    pub(server, "-t", "$queue/orders/eu/1", "-q", "1", "-m", "first")
    pub(server, "-t", "$queue/orders", "-q", "1", "-m", "second")
    assert lines(sub) == ["$queue/orders/eu/1 first", "$queue/orders second"]


def test_shared_subscriptions(server: Server) -> None:
    subs = [start_sub(server, "-t", "$share/g/shared/#", "-q", "1", "-C", "3") for _ in range(2)]
    for number in range(6):
        pub(server, "-t", "shared/x", "-q", "1", "-m", str(number))
    assert sorted(lines(subs[0]) + lines(subs[1])) == ["0", "1", "2", "3", "4", "5"]


def test_a_wrong_password_is_refused(server: Server) -> None:
    command = ["mosquitto_pub", "-p", str(server.mqtt_port), "-u", "guest", "-P", "wrong", "-t", "a", "-m", "x"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    assert result.returncode != 0
    assert "bad user name or password" in result.stderr
