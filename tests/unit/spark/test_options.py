"""Options are read as their names say, and whatever is wrong with one is said with the way out."""

import pytest

from headrace.errors import Refused
from headrace.spark.options import Position, ReadOptions, read_options


def options(**given: str) -> ReadOptions:
    return read_options({"url": "/data", "path": "orders", **given})


def test_without_more_than_a_place_and_a_queue_everything_there_is_is_read() -> None:
    plain = options()

    assert (plain.server, plain.directory, plain.queues) == (None, "/data", ("orders",))
    assert (plain.starting, plain.ending) == (Position(word="earliest"), Position(word="latest"))
    assert plain.fail_on_data_loss
    assert (plain.headers, plain.properties) == ("false", "false")


def test_option_names_are_taken_in_any_case() -> None:
    assert options(STARTINGOFFSETS="7", includeHeaders="TRUE").headers == "true"
    assert options(STARTINGOFFSETS="7").starting == Position(offset=7)


def test_several_queues_are_separated_by_commas_or_given_as_a_list() -> None:
    assert options(path="orders, returns,orders").queues == ("orders", "returns")
    assert options(paths='["a,b", "c"]').queues == ("a,b", "c")


@pytest.mark.parametrize(
    ("text", "microseconds"),
    [
        ("1970-01-01T00:00:01Z", 1_000_000),
        ("1970-01-01 00:00:01.5", 1_500_000),
        ("1970-01-01T01:00:00+01:00", 0),
        ("1970-01-02", 86_400_000_000),
    ],
)
def test_a_time_is_iso_8601_and_utc_unless_it_says_otherwise(text: str, microseconds: int) -> None:
    assert options(startingOffsets=text).starting == Position(time_us=microseconds)


def test_positions_are_given_by_queue_as_for_kafka() -> None:
    found = options(
        startingOffsets='{"orders": {"0": 23}, "returns": -1, "claims": "2026-01-31T12:00:00Z", "old": -2, "b": "7"}'
    ).starting

    assert found.of("orders") == Position(offset=23)
    assert found.of("returns") == Position(word="latest")
    assert found.of("claims").time_us == 1_769_860_800_000_000
    assert found.of("old") == Position(word="earliest")
    assert found.of("b") == Position(offset=7)
    assert found.of("another").word == "earliest"
    assert options(endingOffsets='{"orders": 5}').ending.of("another").word == "latest"


def test_queues_are_named_as_for_kafka_or_by_a_regular_expression() -> None:
    assert read_options({"url": "/data", "subscribe": "a,b"}).queues == ("a", "b")
    assert read_options({"url": "/data", "subscribePattern": "sensor-[0-9]+"}).pattern == "sensor-[0-9]+"


@pytest.mark.parametrize(("text", "delay_ms"), [("500ms", 500), ("30s", 30_000), ("15m", 900_000), ("2 h", 7_200_000)])
def test_time_spans_have_units(text: str, delay_ms: int) -> None:
    assert options(maxTriggerDelay=text).delay_ms == delay_ms


def test_secrets_are_not_shown() -> None:
    server = options(url="https://broker", token="eyJhbGciOi").server

    assert server is not None
    assert server.token == "eyJhbGciOi"
    assert "eyJhbGciOi" not in repr(server)
    assert "hunter2" not in repr(options(url="http://broker", user="ann", password="hunter2"))


@pytest.mark.parametrize(("text", "size"), [("100", 100), ("32m", 32 << 20), ("2KB", 2 << 10), ("1g", 1 << 30)])
def test_sizes_may_have_a_unit(text: str, size: int) -> None:
    assert options(maxBytesPerPartition=text).partition_bytes == size


def test_a_broker_is_named_by_its_address_with_guest_as_the_default_user() -> None:
    server = options(url="http://broker").server
    assert server is not None
    assert (server.host, server.port, server.user, server.password, server.tls) == (
        "broker", 15672, "guest", "guest", False
    )  # fmt: skip

    server = options(url="https://ann:p%40ss@broker:1234", vhost="shop").server
    assert server is not None
    assert (server.port, server.user, server.password, server.tls, server.vhost) == (1234, "ann", "p@ss", True, "shop")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"startingOffset": "5"}, "did you mean startingOffsets"),
        ({"nonsense": "5"}, "there are: "),
        ({"startingOffsets": "soon"}, "earliest, latest, an offset such as 4200"),
        ({"startingOffsets": "9" * 30}, "no offset is that large"),
        ({"startingOffsets": '{"orders": {"1": 5}}'}, "partition 0 only, for queue 'orders'"),
        ({"startingOffsets": '{"orders": "soon"}'}, "earliest, latest, an offset such as 4200"),
        ({"startingOffsets": "{orders"}, "must be JSON"),
        ({"subscribePattern": "a"}, "name the queues once: path and subscribePattern do"),
        ({"path": "", "subscribePattern": "("}, "no regular expression"),
        ({"maxTriggerDelay": "soon"}, "a time span such as"),
        ({"url": "http://x", "tlsCa": "ca.pem"}, "option tlsCa is for https"),
        ({"url": "https://x", "tlsKey": "key.pem"}, "tlsKey needs the certificate"),
        ({"url": "https://x", "token": "secret", "passwordFile": "f"}, "one of the options passwordFile and token"),
        ({"includeHeaders": "maybe"}, "may be false, true or typed"),
        ({"includeProperties": "some"}, "may be false, true or raw"),
        ({"minPartitions": "0"}, "at least 1"),
        ({"minPartitions": "-1"}, "at least 1"),
        ({"maxBytesPerPartition": "12q"}, "a size such as"),
        ({"maxBytesPerTrigger": "m"}, "a size such as"),
        ({"path": " , "}, "name the queues to read"),
        ({"consumerGroup": "audit"}, "needs a broker"),
        ({"url": "ftp://u:secret@x/"}, r"ftp:// cannot be read"),
        ({"url": "http://:15672"}, "names no host"),
        ({"url": "http://x:nine"}, "no valid port"),
    ],
)
def test_what_makes_no_sense_is_refused_with_what_would(given: dict[str, str], said: str) -> None:
    with pytest.raises(Refused, match=said) as refused:
        options(**given)

    assert "secret" not in str(refused.value)


def test_a_missing_place_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADRACE_URL", raising=False)
    with pytest.raises(Refused, match="option url is missing"):
        read_options({"path": "orders"})

    monkeypatch.setenv("HEADRACE_URL", "/elsewhere")
    assert read_options({"path": "orders"}).directory == "/elsewhere"


def test_a_group_is_one_of_a_store() -> None:
    assert options().replication_group == "main"
    assert options(url="s3://bucket/x", group="hot").replication_group == "hot"
    assert options(url="s3://bucket/x", group="default").replication_group == "main"
    with pytest.raises(Refused, match="a broker serves one group"):
        options(url="http://broker", group="hot")
    with pytest.raises(Refused, match="letters, digits"):
        options(url="s3://bucket/x", group="a/b")
