// The pipelines of jobs on Spark, as the jobs tell them.

import { get, path, query, remove } from "./api.js";
import { ask, h, notice, number, rate, show, table, tag } from "./dom.js";

const STATES = { running: "good", waiting: "info", restarting: "warn", failed: "bad", lost: "bad", over: "" };

export async function pipelines(context) {
  const said = await get(`/pipelines${query({ vhost: context.host, limit: 1000 })}`);
  show(
    h("div", { class: "head" }, h("h1", {}, "Pipelines")),
    h("section", { class: "card" }, table([
      ["Pipeline", (each) => [h("b", {}, each.name), h("div", { class: "note" }, `${each.job}, ${each.type}`)]],
      ["State", (each) => [tag(each.state, STATES[each.state]), each.reason ? h("div", { class: "note" }, each.reason) : null]],
      ["Messages", (each) => number(each.messages), "n"],
      ["Per second", (each) => rate(each.rate), "n"],
      ["Behind", (each) => each.behind === null ? "" : number(each.behind), "n"],
      ["Restarts", (each) => number(each.restarts), "n"],
      ["Next run", (each) => [each.due, each.schedule ? h("div", { class: "note mono" }, each.schedule) : null]],
      ["Heard of", (each) => each.reported_at],
      ["", (each) => each.state === "running" ? null : h("button", { type: "button", class: "small", onclick: () => forget(context, each) }, "Forget the job")],
    ], said.items, "No job tells of pipelines: headrace pipeline run starts one.")),
  );
}

async function forget(context, pipeline) {
  if (await ask("Forget the job", `What the broker knows of ${pipeline.job} goes. A job that still runs tells it again.`, "Forget", [])) {
    await context.act(async () => {
      await remove(path`/pipelines/${pipeline.vhost}/${pipeline.job}`);
      notice(`The job ${pipeline.job} is forgotten.`);
    });
  }
}
