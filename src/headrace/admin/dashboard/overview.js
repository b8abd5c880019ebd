// The first page: what the broker does now, and did in the last minutes.

import { get, query } from "./api.js";
import { chart } from "./chart.js";
import { bytes, count, duration, h, micros, number, rate, show, table, tile } from "./dom.js";

export async function overview(context) {
  const said = await get(`/overview${query({ vhost: context.host })}`);
  const { totals, rates, history } = said;
  const last = (name) => history[name].at(-1) || 0;
  const protocols = Object.entries(said.connections_by_protocol);
  show(
    h("div", { class: "head" }, h("h1", {}, "Overview"),
      h("span", { class: "tag good" }, `up ${duration(said.uptime_ms)}`),
      h("span", { class: "tag" }, `${said.node}, release ${said.version}`),
      h("span", { class: "tag" }, `${bytes(said.memory_bytes)} memory`)),
    said.trouble ? h("div", { class: "card trouble", role: "alert" }, said.trouble) : null,
    h("div", { class: "tiles" },
      tile("Published", `${rate(rates.published)}/s`, `${number(totals.published)} in all`),
      tile("Delivered", `${rate(rates.delivered)}/s`, `${number(totals.delivered)} in all`),
      tile("Waiting", number(last("ready")), `${number(last("delayed"))} delayed, ${number(last("unsettled"))} with consumers`),
      tile("Commit", micros(last("commit_p50_us")), `99% within ${micros(last("commit_p99_us"))}`),
      tile("Dead letters", number(totals.dead_lettered), `${number(totals.redelivered)} redelivered`),
      tile("Queues", number(totals.queues), count(totals.consumers, "consumer"))),
    h("div", { class: "charts" },
      chart("Messages per second", [["published", history.published], ["delivered", history.delivered], ["acknowledged", history.acknowledged]], rate, said.interval_ms),
      chart("Waiting and with consumers", [["waiting", history.ready], ["delayed", history.delayed], ["with consumers", history.unsettled]], number, said.interval_ms),
      chart("Commit latency", [["half within", history.commit_p50_us], ["99% within", history.commit_p99_us]], micros, said.interval_ms),
      chart("Redelivered and given up per second", [["redelivered", history.redelivered], ["dead letters", history.dead_lettered]], rate, said.interval_ms)),
    h("section", { class: "card" }, h("h2", {}, "Connections by protocol"),
      table([["Protocol", ([name]) => name], ["Connections", ([, count]) => number(count), "n"]], protocols,
        "Nobody is connected.")),
  );
}
