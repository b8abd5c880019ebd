"""deploy/: the chart, the compose file, the container and the systemd unit, by the tools and schemas of each."""

import importlib.resources
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import kubernetes_validate
import pytest
import yaml

from headrace.config.configuration import load
from headrace.config.settings import ListenerSettings
from headrace.core.queue.configured import FILE_QUEUE
from tests.servers import Server, serving

_ROOT = Path(__file__).parents[2]
_DEPLOY = _ROOT / "deploy"
_CHART = _DEPLOY / "helm" / "headrace"
_KUBERNETES = ("1.31.0", kubernetes_validate.latest_version())

Document = dict[str, Any]

_USERS: dict[str, object] = {
    "list": [
        {"name": "admin", "tags": ["administrator"]},
        {"name": "prometheus", "tags": ["monitoring"]},
        {"name": "shop"},
    ],
    "passwords": {"admin": "a", "prometheus": "p", "shop": "s"},
}
_VALUES: dict[str, dict[str, object]] = {
    "a volume": {},
    "a volume with everything": {
        "config": {"limits": {"memory_bytes": "512MiB"}, "queues": [{"name": "orders"}]},
        "users": _USERS,
        "tls": {"secretName": "certificate"},
        "volume": {"size": "100Gi", "storageClassName": "fast"},
        "service": {"type": "LoadBalancer", "annotations": {"a": "b"}},
        "imagePullSecrets": [{"name": "registry"}],
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [{"key": "broker", "operator": "Exists"}],
    },
    "a store": {"mode": "store", "store": {"url": "s3://bucket/prefix"}},
    "a store with everything": {
        "mode": "store",
        "store": {
            "url": "s3://bucket/prefix",
            "credentials": {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "key"},
        },
        "users": _USERS,
        "tls": {"secretName": "certificate"},
        "serviceAccount": {"annotations": {"eks.amazonaws.com/role-arn": "arn"}},
    },
    "Secrets that are there": {
        "mode": "store",
        "store": {"url": "gs://bucket", "existingSecret": "mine"},
        "users": {"list": [{"name": "shop"}], "existingSecret": "yours"},
    },
}


def _helm(*words: str, values: dict[str, object] | None = None) -> "subprocess.CompletedProcess[str]":
    helm = shutil.which("helm")
    assert helm is not None, "scripts/test installs helm"
    return subprocess.run(
        [helm, *words, "--values", "-"],
        input=json.dumps(values or {}),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "HELM_CACHE_HOME": "/nowhere", "HELM_CONFIG_HOME": "/nowhere", "HELM_DATA_HOME": "/nowhere"},
    )


def _rendered(values: dict[str, object]) -> dict[tuple[str, str], Document]:
    """The documents of the chart by kind and name."""
    ended = _helm("template", "shop", str(_CHART), values=values)
    assert ended.returncode == 0, ended.stderr
    found = [each for each in yaml.safe_load_all(ended.stdout) if each is not None]
    return {(each["kind"], each["metadata"]["name"]): each for each in found}


def _workload(documents: dict[tuple[str, str], Document]) -> Document:
    (found,) = [each for (kind, _), each in documents.items() if kind in ("StatefulSet", "Deployment")]
    return found


@pytest.fixture(scope="module", params=_VALUES.values(), ids=list(_VALUES))
def documents(request: pytest.FixtureRequest) -> dict[tuple[str, str], Document]:
    return _rendered(request.param)


# -- the chart ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("values", _VALUES.values(), ids=_VALUES)
def test_helm_finds_no_fault_in_the_chart(values: dict[str, object]) -> None:
    ended = _helm("lint", "--strict", str(_CHART), values=values)

    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.parametrize("version", _KUBERNETES)
def test_every_document_satisfies_the_schema_of_kubernetes(
    documents: dict[tuple[str, str], Document], version: str
) -> None:
    for document in documents.values():
        kubernetes_validate.validate(document, version, strict=True)


def test_a_volume_is_a_stateful_set_and_a_store_a_deployment_of_three_nodes() -> None:
    volume, store = _rendered(_VALUES["a volume"]), _rendered(_VALUES["a store"])

    assert _workload(volume)["kind"] == "StatefulSet"
    assert _workload(volume)["spec"]["replicas"] == 1
    (claim,) = _workload(volume)["spec"]["volumeClaimTemplates"]
    assert claim["spec"]["accessModes"] == ["ReadWriteOnce"]
    assert _workload(store)["kind"] == "Deployment"
    assert _workload(store)["spec"]["replicas"] == 3
    for found in (volume, store):
        assert {"Service", "ConfigMap", "PodDisruptionBudget", "NetworkPolicy"} <= {kind for kind, _ in found}


def test_everything_that_a_document_names_is_there(documents: dict[tuple[str, str], Document]) -> None:
    workload = _workload(documents)
    template = workload["spec"]["template"]
    pod, labels = template["spec"], template["metadata"]["labels"]
    (container,) = pod["containers"]
    volumes = {each["name"]: each for each in pod["volumes"]}
    volumes |= {each["metadata"]["name"]: each for each in workload["spec"].get("volumeClaimTemplates", [])}
    ports = {each["name"] for each in container["ports"]}

    assert {mount["name"] for mount in container["volumeMounts"]} == set(volumes)
    secrets = [each["secret"]["secretName"] for each in volumes.values() if "secret" in each]
    secrets += [each["secretRef"]["name"] for each in container.get("envFrom", [])]
    elsewhere = {"certificate", "mine", "yours"}
    assert {name for name in secrets if ("Secret", name) not in documents} <= elsewhere
    assert ("ConfigMap", volumes["config"]["configMap"]["name"]) in documents
    assert ("ServiceAccount", pod["serviceAccountName"]) in documents
    if workload["kind"] == "StatefulSet":
        assert ("Service", workload["spec"]["serviceName"]) in documents
    assert workload["spec"]["selector"]["matchLabels"] == labels
    for (kind, _), document in documents.items():
        if kind == "Service":
            assert document["spec"]["selector"] == labels
            assert {each["targetPort"] for each in document["spec"]["ports"]} <= ports
        if kind == "PodDisruptionBudget":
            assert document["spec"]["selector"]["matchLabels"] == labels
        if kind == "NetworkPolicy":
            assert document["spec"]["podSelector"]["matchLabels"] == labels
            assert {port["port"] for rule in document["spec"]["ingress"] for port in rule["ports"]} == ports


def test_a_pod_is_not_root_and_has_probes_that_the_broker_answers(documents: dict[tuple[str, str], Document]) -> None:
    pod = _workload(documents)["spec"]["template"]["spec"]
    (container,) = pod["containers"]

    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] == 10001
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    paths = {name: container[f"{name}Probe"]["httpGet"]["path"] for name in ("startup", "liveness", "readiness")}
    assert paths == {"startup": "/health", "liveness": "/health", "readiness": "/ready"}
    assert pod["terminationGracePeriodSeconds"] == 60  # longer than limits.stop


def test_the_broker_takes_the_configuration_and_the_environment_of_a_pod(
    documents: dict[tuple[str, str], Document], tmp_path: Path
) -> None:
    (config,) = [each for (kind, _), each in documents.items() if kind == "ConfigMap"]
    (container,) = _workload(documents)["spec"]["template"]["spec"]["containers"]
    text = config["data"]["headrace.yaml"]
    for name in ("tls.crt", "tls.key"):
        (tmp_path / name).touch()
    (tmp_path / "headrace.yaml").write_text(text.replace("/run/headrace/tls", str(tmp_path)))
    environment = _container_environment()
    environment |= {each["name"]: each.get("value", "pod-1") for each in container.get("env", [])}

    read = load(FILE_QUEUE, tmp_path / "headrace.yaml", environment, {})
    settings = read.settings

    assert read.warnings == []
    assert settings.listeners.host == "0.0.0.0"
    is_store = _workload(documents)["kind"] == "Deployment"
    assert bool(settings.storage.store) is is_store
    assert settings.cluster.node == ("pod-1" if is_store else "")
    opened = {
        name: getattr(settings.listeners, name) for name in ListenerSettings.__dataclass_fields__ if name != "host"
    }
    opened |= {"cluster": int(settings.cluster.listen.rpartition(":")[2])} if is_store else {}
    listed = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert listed == {name: port for name, port in opened.items() if port is not None}


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"mode": "store"}, "store.url is needed"),
        ({"mode": "elsewhere"}, "mode"),
        ({"users": {"list": [{"name": "shop"}]}}, "users.passwords.shop is needed"),
        ({"stroe": {"url": "s3://bucket"}}, "stroe"),
    ],
)
def test_values_that_cannot_be_are_refused_in_words(values: dict[str, object], reason: str) -> None:
    ended = _helm("template", "shop", str(_CHART), values=values)

    assert ended.returncode != 0
    assert reason in ended.stderr


def test_users_of_the_chart_can_log_in(tmp_path: Path) -> None:
    documents = _rendered({"users": _USERS})
    (config,) = [each for (kind, _), each in documents.items() if kind == "ConfigMap"]
    secret = documents["Secret", "shop-headrace-users"]
    for name in ("add-users.sh", "users.txt"):
        (tmp_path / name).write_text(config["data"][name])
    for name, password in secret["stringData"].items():
        (tmp_path / name).write_text(password)
    assert (tmp_path / "add-users.sh").read_text().strip() == (_CHART / "files" / "add-users.sh").read_text().strip()

    with serving(Server(tmp_path, in_memory=True)) as server:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        ended = subprocess.run(
            ["sh", tmp_path / "add-users.sh", tmp_path / "users.txt", tmp_path],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            env={**os.environ, "PATH": path, "HEADRACE_URL": server.http_url},
        )
        assert ended.returncode == 0, ended.stderr
        page = httpx.get(f"{server.http_url}/metrics", auth=("prometheus", "p"))
        users = httpx.get(f"{server.http_url}/api/v1/users", auth=("admin", "a"))
        refused = httpx.get(f"{server.http_url}/metrics", auth=("shop", "s"))

    assert page.status_code == 200
    assert {each["name"] for each in users.json()["items"]} == {"admin", "guest", "prometheus", "shop"}
    assert refused.status_code == 403


# -- the container and what is beside it -------------------------------------------------------------------------------


def _instructions() -> list[list[tuple[str, str]]]:
    """The instructions of each stage of the Containerfile."""
    text = re.sub(r"\\\n\s*", "", (_DEPLOY / "Containerfile").read_text())
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    pairs = [(line.split(" ", 1)[0], line.split(" ", 1)[1]) for line in lines]
    starts = [at for at, (word, _) in enumerate(pairs) if word == "FROM"]
    return [pairs[at:until] for at, until in zip(starts, [*starts[1:], len(pairs)], strict=True)]


def _container_environment() -> dict[str, str]:
    """The settings of the broker in the container."""
    (line,) = [rest for word, rest in _instructions()[-1] if word == "ENV"]
    found = dict(pair.split("=", 1) for pair in line.split())
    return {name: value for name, value in found.items() if name.startswith("HEADRACE_")}


def test_the_container_is_compiled_with_extras_that_exist_and_is_not_root() -> None:
    build, final = _instructions()
    said = dict(final)
    extras = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (wanted,) = [rest.removeprefix("EXTRAS=").split(",") for word, rest in build if word == "ARG"]

    assert set(wanted) < set(extras)
    assert {"arrow", "coap", "jwt", "objects"} <= set(wanted)
    assert any("HEADRACE_COMPILE=on" in rest for word, rest in build if word == "RUN")
    assert said["COPY"].startswith("--from=build ")
    assert said["USER"] == "10001:10001"
    assert "http://127.0.0.1:15672/health" in said["HEALTHCHECK"]
    ports = [getattr(ListenerSettings(), name) for name in ("amqp", "mqtt", "ws", "http")]
    assert [int(port) for port in said["EXPOSE"].split()] == ports
    assert load(FILE_QUEUE, None, _container_environment(), {}).warnings == []


def test_the_health_check_of_the_container_tells_a_broker_from_none(tmp_path: Path) -> None:
    (line,) = [rest for word, rest in _instructions()[-1] if word == "HEALTHCHECK"]
    command = json.loads(line[line.index("[") :])

    def check(url: str) -> int:
        words = [sys.executable, *[word.replace("http://127.0.0.1:15672", url) for word in command[1:]]]
        return subprocess.run(words, capture_output=True, timeout=30, check=False).returncode

    with serving(Server(tmp_path, in_memory=True)) as server:
        url = server.http_url
        assert check(url) == 0
    assert check(url) != 0


def test_the_compose_file_satisfies_its_schema_and_names_what_is_there() -> None:
    compose = yaml.safe_load((_DEPLOY / "compose.yaml").read_text())
    schema = importlib.resources.files("check_jsonschema") / "builtin_schemas" / "vendor" / "compose-spec.json"
    jsonschema.validate(compose, json.loads(schema.read_text()))

    services = compose["services"]
    assert set(services) == {"broker", "users", "prometheus", "grafana"}
    build = services["broker"]["build"]
    assert (_DEPLOY / build["context"] / build["dockerfile"]).is_file()
    for service in services.values():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert (_DEPLOY / source).is_file() if source.startswith(".") else source in compose["volumes"]
        for name in service.get("secrets", []):
            assert name in compose["secrets"]
        for name in service.get("depends_on", []):
            assert name in services


def test_prometheus_and_grafana_find_the_broker_and_the_dashboard() -> None:
    compose = yaml.safe_load((_DEPLOY / "compose.yaml").read_text())
    mounted = {
        volume.split(":")[1]: volume.split(":")[0]
        for name in ("prometheus", "grafana")
        for volume in compose["services"][name]["volumes"]
    }
    scraped = yaml.safe_load((_DEPLOY / "prometheus.yaml").read_text())
    (job,) = scraped["scrape_configs"]
    (source,) = yaml.safe_load((_DEPLOY / "grafana" / "datasources.yaml").read_text())["datasources"]
    (boards,) = yaml.safe_load((_DEPLOY / "grafana" / "dashboards.yaml").read_text())["providers"]

    assert job["job_name"] == "headrace"  # as the alerts and the dashboard call it
    assert job["static_configs"] == [{"targets": ["broker:15672"]}]
    assert f"{job['basic_auth']['username']} monitoring" in compose["configs"]["users"]["content"]
    assert job["basic_auth"]["password_file"] == "/run/secrets/prometheus"
    assert [f"/etc/prometheus/{name}" for name in scraped["rule_files"]] == ["/etc/prometheus/headrace.rules.yaml"]
    assert mounted["/etc/prometheus/headrace.rules.yaml"] == "./prometheus.rules.yaml"
    assert source["url"] == "http://prometheus:9090"
    assert mounted[f"{boards['options']['path']}/headrace.json"] == "./grafana.json"


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / "headrace.service"
    program = tmp_path / "headrace"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    text = (_DEPLOY / "headrace.service").read_text()
    unit.write_text(text.replace("/opt/headrace/bin/headrace", str(program)))

    verified = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False)
    exposed = subprocess.run(
        ["systemd-analyze", "security", "--offline=yes", "--threshold=35", unit],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (verified.returncode, verified.stderr) == (0, "")
    assert exposed.returncode == 0, exposed.stdout[-500:]
