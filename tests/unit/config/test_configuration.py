"""Files, variables and flags: which wins, and how what is wrong is said."""

import contextlib
import json
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from headrace.config.configuration import Configuration, Document, Flags, load
from headrace.config.reference import page, schema
from headrace.config.settings import Settings, root
from headrace.config.table import Fault
from headrace.core.queue.configured import FILE_QUEUE, wanted_queues
from headrace.errors import Refused

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def _load(text: str = "", environment: dict[str, str] | None = None, flags: Flags | None = None) -> Configuration:
    file = None
    if text:
        file = Path("conf/broker.yaml")
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    return load(FILE_QUEUE, file, environment or {}, flags or {})


def _refusal(text: str = "", environment: dict[str, str] | None = None, flags: Flags | None = None) -> str:
    with pytest.raises(Refused) as raised:  # noqa: PT012
        configuration = _load(text, environment, flags)
        _use(configuration)
    return str(raised.value)


def _use(configuration: Configuration) -> None:
    try:
        wanted_queues(configuration.queues)
    except Fault as fault:
        raise configuration.located(fault) from fault


def test_the_keys_of_a_cluster_may_be_where_fluxmq_has_them() -> None:
    configuration = _load("cluster: {raft: {write_policy: reject, distribution_mode: forward}}")

    cluster = configuration.settings.cluster
    assert (cluster.write_policy, cluster.distribution_mode) == ("reject", "forward")
    assert configuration.origins["cluster", "write_policy"].endswith(":1")


def test_what_raft_and_cluster_say_must_agree() -> None:
    agreed = _load("cluster: {write_policy: reject, raft: {write_policy: reject}}")

    assert agreed.settings.cluster.write_policy == "reject"
    said = _refusal("cluster:\n  write_policy: reject\n  raft: {write_policy: forward}")
    assert ":3: 'cluster.raft.write_policy' and 'cluster.write_policy' say different things" in said
    assert "there is no key 'peers'; known are distribution_mode, write_policy" in _refusal(
        "cluster: {raft: {peers: 3}}"
    )
    environment = {"HEADRACE_CLUSTER_WRITE_POLICY": "reject"}
    over = _load("cluster: {raft: {write_policy: forward}}", environment)
    assert over.settings.cluster.write_policy == "reject"


def test_without_anything_the_defaults_count() -> None:
    settings = _load().settings

    assert settings.listeners.amqp == 5672
    assert settings.listeners.amqps is None
    assert settings.storage == Settings().storage


def test_the_file_of_the_current_directory_is_read_unless_another_is_named() -> None:
    Path("headrace.yaml").write_text("listeners: {amqp: 1}")
    Path("other.yaml").write_text("listeners: {amqp: 2}")

    assert load(FILE_QUEUE, None, {}, {}).settings.listeners.amqp == 1
    assert load(FILE_QUEUE, None, {"HEADRACE_CONFIG": "other.yaml"}, {}).settings.listeners.amqp == 2
    assert load(FILE_QUEUE, Path("other.yaml"), {}, {}).settings.listeners.amqp == 2


def test_variables_win_over_the_file_and_flags_over_both() -> None:
    text = "listeners: {amqp: 1, mqtt: 2, http: 3}"
    environment = {"HEADRACE_LISTENERS_MQTT": "20", "HEADRACE_LISTENERS_HTTP": "30", "HEADRACE_URL": "http://x"}
    flags = {("listeners", "http"): ("--http", "300")}

    configuration = _load(text, environment, flags)

    listeners = configuration.settings.listeners
    assert (listeners.amqp, listeners.mqtt, listeners.http) == (1, 20, 300)
    assert configuration.origins["listeners", "amqp"] == "conf/broker.yaml:1"
    assert configuration.origins["listeners", "mqtt"] == "HEADRACE_LISTENERS_MQTT"
    assert configuration.origins["listeners", "http"] == "--http"


def test_values_are_read_as_people_write_them() -> None:
    text = """
listeners: {coap: off, amqp: 0}
storage: {data: store, tail_bytes: 32MiB, segment_bytes: 134217728}
queue_manager: {auto_commit_interval: 500ms}
limits:
"""
    settings = _load(text).settings

    assert (settings.listeners.coap, settings.listeners.amqp) == (None, 0)
    assert settings.storage.data == Path("conf/store")
    assert (settings.storage.tail_bytes, settings.storage.segment_bytes) == (32 << 20, 128 << 20)
    assert settings.queue_manager.auto_commit_interval == 500
    assert settings.limits == Settings().limits


def test_paths_of_flags_are_meant_from_where_the_command_runs() -> None:
    flags = {("storage", "data"): ("--data", "here")}

    assert _load("storage: {data: there}", flags=flags).settings.storage.data == Path("here")


def test_with_a_certificate_there_are_tls_ports() -> None:
    text = "tls: {certificate: a.pem, key: a.key}\nlisteners: {mqtts: off}"

    listeners = _load(text).settings.listeners

    assert (listeners.amqps, listeners.mqtts, listeners.https) == (5671, None, 15671)


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("listeners:\n  amqp: 5672\n  ampq: 1\n", 3, "there is no key 'ampq'; known are amqp"),
        ("listener: {}\n", 1, "there is no key 'listener'"),
        ("\nlisteners:\n  amqp: many\n", 3, "listeners: 'amqp' takes a port from 0 to 65535, or off, not 'many'"),
        ("listeners: {amqp: 70000}\n", 1, "not 70000"),
        ("listeners: {host: 5}\n", 1, "'host' must be a text"),
        ("listeners: []\n", 1, "'listeners' must be a table of keys"),
        ("storage:\n\n  memory: yes\n", 3, "'memory' must be true or false, not 'yes'"),
        ("storage: {tail_bytes: 1}\n", 1, "'tail_bytes' must be from 1MiB to 1TiB"),
        ("storage: {tail_bytes: big}\n", 1, "a size such as 64MiB"),
        ("log: {level: loud}\n", 1, "must be one of debug, info, warning, error, not 'loud'"),
        ("queue_manager: {auto_commit_interval: soon}\n", 1, "must be a duration such as '168h'"),
        ("queue_manager: {auto_commit_interval: 0}\n", 1, "at least 1 ms"),
        ("cluster: {listen: here}\n", 1, "'listen' must be host:port"),
        ("cluster: {listen: 'here:70000'}\n", 1, "with a port up to 65535"),
        ("queues: {name: a}\n", 1, "'queues' must be a list"),
        ("queues:\n - name: a\n - {}\n", 3, "the key 'name' is missing"),
        ("queues:\n - name: a\n - type: stream\n   name: a\n", 4, "the queue 'a' is there twice"),
        ("queues:\n - name: a\n   limits:\n     max_depth: -1\n", 4, "limits: 'max_depth' must be a whole number"),
        ("queues:\n - name: a\n   topics: ['x/#/y']\n", 3, "'topics' cannot be used"),
        ("queues:\n - name: a\n   filter: 'a ='\n", 3, "'filter' cannot be read"),
        ("log: {}\nlog: {}\n", 2, "the key 'log' is there twice"),
        ("log: {\n", 2, "this is no YAML"),
        ("log: !!python/object:os.system x\n", 1, "'log' must be a table of keys"),
        ("- log\n", 1, "must be a table of keys"),
    ],
)
def test_what_is_wrong_is_said_with_file_line_key_and_what_was_expected(text: str, line: int, words: str) -> None:
    message = _refusal(text)

    assert message.startswith(f"conf/broker.yaml:{line}: ")
    assert words in message


def test_all_that_is_wrong_in_a_file_is_said_at_once() -> None:
    message = _refusal(
        "listeners:\n  amqp: many\n  htpp: 1\nqueues:\n  - type: clasic\n    name: a\n  - limits: {max_depth: -1}\n"
    )

    assert [line.split(": ")[0] for line in message.splitlines()] == [
        f"conf/broker.yaml:{number}" for number in (3, 2, 5, 7, 7)
    ]
    for words in ("'htpp'", "'many'", "'clasic'", "'name' is missing", "'max_depth'"):
        assert words in message


@pytest.mark.parametrize(
    ("text", "where", "words"),
    [
        ("tls: {certificate: a}\n", "conf/broker.yaml:1", "both a certificate and its key"),
        ("tls: {authority: a}\n", "conf/broker.yaml:1", "both a certificate and its key"),
        ("listeners:\n  amqps: 5671\n", "conf/broker.yaml:2", "amqps needs a certificate"),
        ("jwt:\n  keys: a\n  issuer: i\n", "conf/broker.yaml:2", "give issuer, audience and user_claim"),
        ("storage:\n  memory: true\n  data: x\n", "conf/broker.yaml:3", "nothing is kept in a directory"),
        ("listeners:\n  amqp: 7000\n  mqtt: 7000\n", "conf/broker.yaml:3", "mqtt and amqp cannot both have port 7000"),
    ],
)
def test_contradictions_are_refused(text: str, where: str, words: str) -> None:
    message = _refusal(text)

    assert message.startswith(where)
    assert words in message


def test_a_variable_that_is_wrong_is_named() -> None:
    assert _refusal(environment={"HEADRACE_LISTENERS_AMQP": "x"}).startswith("HEADRACE_LISTENERS_AMQP takes a port")
    assert "HEADRACE_LOG_LEVLE stands for no key" in _refusal(environment={"HEADRACE_LOG_LEVLE": "info"})
    assert "true or false" in _refusal(environment={"HEADRACE_STORAGE_MEMORY": "1"})


def test_a_file_that_is_not_there_is_one_clear_line() -> None:
    with pytest.raises(Refused, match=r"the configuration nowhere\.yaml cannot be read: No such file"):
        load(FILE_QUEUE, Path("nowhere.yaml"), {}, {})


@given(st.binary(max_size=200) | st.text(alphabet="ab:- {}[]\n\"'&*!|>#0,", max_size=80).map(str.encode))
def test_no_file_is_more_than_refused(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    file = tmp_path_factory.mktemp("any") / "any.yaml"
    file.write_bytes(data)

    with contextlib.suppress(Refused):
        wanted_queues(load(FILE_QUEUE, file, {}, {}).queues)


def test_a_group_is_main_unless_it_is_named_and_needs_a_store() -> None:
    store = "storage: {store: 'file:///x'}\n"

    assert _load().settings.cluster.group == "main"
    assert _load("cluster: {group: default}").settings.cluster.group == "main"
    assert _load("cluster: {group: ''}").settings.cluster.group == "main"
    assert _load(store, {"HEADRACE_CLUSTER_GROUP": "hot-1_B"}).settings.cluster.group == "hot-1_B"
    assert "broker.yaml:1: a replication group is a database of an object store" in _refusal("cluster: {group: hot}")


@pytest.mark.parametrize("name", ["a/b", "..", "a b", "h\u00f6t", "cluster", "probe-1", "x" * 65])
def test_a_group_cannot_be_called_just_anything(name: str) -> None:
    text = json.dumps({"storage": {"store": "file:///x"}, "cluster": {"group": name}})

    assert "'group' must be a name of up to 64 letters, digits, - and _" in _refusal(text)


def test_queues_of_the_file_know_their_group_and_may_have_the_same_name_in_several() -> None:
    entries = _load(
        "queues:\n"
        "- {name: a}\n"
        "- {name: b, replication: {enabled: true, group: default}}\n"
        "- {name: a, replication: {enabled: true, group: hot}}\n"
    ).queues

    assert [(each.definition.name, each.group) for each in wanted_queues(entries)] == [
        ("a", "main"),
        ("b", "main"),
        ("a", "hot"),
    ]
    unsaid = "queues:\n- name: c\n  replication: {group: hot}\n"
    assert "'replication.group' names 'hot', and counts only with 'replication.enabled: true'" in _refusal(unsaid)
    twice = "queues:\n- {name: a}\n- {name: a, replication: {enabled: true, group: main}}\n"
    assert "broker.yaml:3: the queue 'a' is there twice" in _refusal(twice)


def test_values_that_refer_to_themselves_are_refused() -> None:
    bomb = "a: &a [x, x, x, x, x, x, x, x, x, x]\n"
    for number in range(8):
        name, former = chr(ord("b") + number), chr(ord("a") + number)
        bomb += f"{name}: &{name} [" + ", ".join([f"*{former}"] * 10) + "]\n"

    assert "values in it" in _refusal(bomb)
    assert "values in it" in _refusal("a: &a\n  b: *a\n") or "no YAML" in _refusal("a: &a\n  b: *a\n")


def test_a_document_knows_the_line_of_what_is_missing() -> None:
    Path("x.yaml").write_text("a:\n  b:\n    - c\n")
    document = Document(Path("x.yaml"))

    assert document.where(("a", "b", 0)) == "x.yaml:3"
    assert document.where(("a", "b", 7, "d")) == "x.yaml:2"


def test_the_schema_agrees_with_what_is_read() -> None:
    described = schema(root(FILE_QUEUE))
    good = yaml.safe_load("listeners: {amqp: 0, http: 'off'}\nqueues: [{name: a, limits: {message_ttl: 1h}}]")

    jsonschema.Draft202012Validator.check_schema(described)
    jsonschema.validate(good, described)
    wrong: list[dict[str, object]] = [{"listener": {}}, {"listeners": {"amqp": "x"}}, {"queues": [{"type": "stream"}]}]
    for bad in wrong:
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(bad, described)


def test_defaults_in_the_schema_are_what_the_file_takes() -> None:
    sections = schema(root(FILE_QUEUE))["properties"]
    assert isinstance(sections, dict)
    text = json.dumps(
        {
            name: {key: value["default"] for key, value in section["properties"].items() if "default" in value}
            for name, section in sections.items()
            if "properties" in section
        }
    )
    written = json.loads(text)
    del written["storage"]["data"]  # which is meant from where the file is

    assert _load(json.dumps(written)).changes(_load()) == []


def test_the_reference_page_is_what_the_settings_make_it() -> None:
    assert (ROOT / "docs" / "configuration.md").read_text() == page(root(FILE_QUEUE)), "run scripts/reference"


def test_the_example_of_the_reference_page_can_be_used() -> None:
    text = (ROOT / "docs" / "configuration.md").read_text()

    configuration = _load(text.split("```yaml\n")[1].split("```")[0])

    assert [each.definition.name for each in wanted_queues(configuration.queues)] == ["orders", "telemetry", "orders"]


def test_a_broker_without_a_file_does_not_load_yaml() -> None:
    code = "import sys, headrace.launch as a; a.Launch().read(); print('yaml' in sys.modules)"

    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert result.stdout == "False\n"
