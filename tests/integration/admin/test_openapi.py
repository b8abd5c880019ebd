"""Whatever the OpenAPI document allows, and much that it does not, is answered without an error of ours."""

from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.strategies import sampled_from
from openapi_spec_validator import validate
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import response_schema_conformance, status_code_conformance

from headrace.admin.api.openapi import OPERATIONS
from headrace.admin.api.operation import PREFIX
from tests.servers import Server

_CHECKS = [not_a_server_error, status_code_conformance, response_schema_conformance]
_SETTINGS = settings(
    max_examples=12,
    deadline=None,
    database=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module")
def document(server: Server) -> Any:
    return schemathesis.openapi.from_url(f"{server.http_url}/api/v1/openapi.json")


def test_the_document_is_one_of_openapi(http: httpx.Client) -> None:
    validate(http.get("/api/v1/openapi.json").json())


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["right", "wrong"])
@pytest.mark.parametrize(("method", "path"), [(each.method, each.path) for each in OPERATIONS])
def test_every_operation_answers_whatever_it_is_sent(
    document: Any, http: httpx.Client, method: str, path: str, mode: GenerationMode
) -> None:
    operation = document[PREFIX + path][method]

    @_SETTINGS
    @given(case=operation.as_strategy(generation_mode=mode), queue=sampled_from(["", "fuzzed", "fuzzed-stream"]))
    def answers(case: Any, queue: str) -> None:
        if isinstance(case.body, dict) and "wait_ms" in case.body:
            case.body["wait_ms"] = 1
        if queue and ("queue" in case.path_parameters or "publish" in path):
            kind = "stream" if "stream" in queue else "classic"
            assert http.put(f"/api/v1/queues/%2F/{queue}", json={"type": kind}).is_success
            case.path_parameters.update({"vhost": "%2F", "queue": queue, "group": "default"})
        answer = case.call(auth=("guest", "guest"))
        case.validate_response(answer, checks=_CHECKS)

    answers()
