"""Pipelines of jobs: told by `headrace pipeline run`, shown to everybody who sees the virtual host."""

from dataclasses import dataclass
from functools import partial
from typing import Final

from starlette.responses import Response

from headrace.admin.api.operation import Operation, Paged, Schema, array_of, page_of, table
from headrace.admin.messages import time_to_json
from headrace.admin.pages import BadRequest, Call, after, answer, listed
from headrace.admin.pipelines import MOST, NAME_BYTES, Pipeline, Report
from headrace.admin.resources import hosts
from headrace.admin.site import ADMINISTRATOR, ANYBODY
from headrace.config.kinds import Text
from headrace.config.table import option, read_model, table_of


@dataclass(frozen=True)
class PipelineList(Paged):
    """Query of pipelines: of one virtual host."""

    vhost: str = option("", Text())


def pipeline_to_json(pipeline: Pipeline, now_us: int) -> dict[str, object]:
    """Return a row of the list of pipelines."""
    report = pipeline.report
    return {
        "vhost": pipeline.host,
        "job": pipeline.job,
        "name": report.name,
        "type": report.type,
        "state": pipeline.state(now_us),
        "messages": report.messages,
        "rate": round(pipeline.rate, 2),
        "batches": report.batches,
        "behind": report.behind,
        "restarts": report.restarts,
        "schedule": report.schedule,
        "due": report.due,
        "reason": report.reason,
        "user": pipeline.user,
        "reported_at": time_to_json(pipeline.reported_us),
    }


async def list_pipelines(call: Call) -> Response:
    query = call.query(PipelineList)
    seen = {name for name, _ in hosts(call, query.vhost)}
    found = {f"{each.host}\n{each.job}\n{each.report.name}": each for each in call.site.pipelines if each.host in seen}
    names, following = await after(found, query.after, query.limit)
    now_us = call.site.clock.now_us()
    return await listed(names, following, lambda name: pipeline_to_json(found[name], now_us))


async def put_job(call: Call) -> Response:
    """Take the status of a job. It is shown and not kept: the job tells it again."""
    host, job = _job(call)
    call.enter(host)
    given = (await call.json()).get("pipelines")
    if not isinstance(given, list) or len(given) > MOST:
        raise BadRequest(f"the key 'pipelines' must be a list of at most {MOST} pipelines")
    reports = [read_model(Report, each, f"pipelines[{at}]") for at, each in enumerate(given)]
    visitor = call.visitor
    is_master = visitor.may(ADMINISTRATOR)
    call.site.pipelines.note(host, job, visitor.name, reports, call.site.clock.now_us(), is_master)
    return answer({"pipelines": len(reports)})


async def delete_job(call: Call) -> Response:
    """Forget the status of a job."""
    host, job = _job(call)
    call.enter(host)
    visitor = call.visitor
    return answer({"pipelines": call.site.pipelines.forget(host, job, visitor.name, visitor.may(ADMINISTRATOR))})


def _job(call: Call) -> tuple[str, str]:
    """Return the virtual host and the name of the job. Raises BadRequest."""
    job = call.path("job")
    if len(job.encode(errors="replace")) > NAME_BYTES:
        raise BadRequest(f"the name of a job has at most {NAME_BYTES} bytes")
    return call.path("vhost"), job


_BODY: Final[Schema] = {
    "type": "object",
    "properties": {"pipelines": {**array_of(table_of(Report).schema()), "maxItems": MOST}},
    "required": ["pipelines"],
}
_JOB: Final = "/pipelines/{vhost}/{job}"
_reported: Final = partial(Operation, needs=ANYBODY)

OPERATIONS: Final = (
    Operation("GET", "/pipelines", list_pipelines, "List the pipelines of jobs", page_of("Pipeline"), PipelineList),
    _reported("PUT", _JOB, put_job, "Tell the status of a job", table("pipelines:count"), body=_BODY),
    _reported("DELETE", _JOB, delete_job, "Forget the status of a job", table("pipelines:count")),
)
