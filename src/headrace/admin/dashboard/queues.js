// The list of queues, and how one is declared.

import { get, path, put, query } from "./api.js";
import { ask, bytes, field, h, notice, number, rate, show, table, tag } from "./dom.js";

const KINDS = { classic: "", quorum: "info", stream: "good", ephemeral: "warn" };

export const link = (queue) => h("a", { href: `#/queues/${encodeURIComponent(queue.vhost)}/${encodeURIComponent(queue.name)}` }, queue.name);

export async function queues(context) {
  const search = context.memory.search || "";
  const trail = context.memory.trail || [];
  const said = await get(`/queues${query({ vhost: context.host, search, after: trail.at(-1), limit: 50 })}`);
  const typing = document.activeElement && document.activeElement.id === "search";
  const input = h("input", { id: "search", type: "search", placeholder: "Search by name", "aria-label": "Search queues by name", value: search,
    oninput: () => { context.memory.search = input.value; context.memory.trail = []; context.refresh(); } });
  show(
    h("div", { class: "head" }, h("h1", {}, "Queues"), h("div", { class: "actions" }, input,
      h("button", { class: "main", type: "button", onclick: () => declare(context) }, "Declare a queue"))),
    h("section", { class: "card" },
      table([
        ["Queue", link],
        ["Type", (queue) => [tag(queue.type, KINDS[queue.type]), " ", queue.state === "damaged" ? tag("damaged", "bad") : null]],
        ["Waiting", (queue) => queue.type === "stream" ? "" : number(queue.counters.ready), "n"],
        ["Delayed", (queue) => number(queue.counters.delayed), "n"],
        ["Held", (queue) => number(queue.counters.unsettled), "n"],
        ["In /s", (queue) => rate(queue.rates.published), "n"],
        ["Out /s", (queue) => rate(queue.rates.delivered), "n"],
        ["Groups", (queue) => number(queue.groups), "n"],
        ["Consumers", (queue) => number(queue.consumers), "n"],
        ["Size", (queue) => bytes(queue.bytes), "n"],
      ], said.items, search ? "No queue has that in its name." : "There are no queues yet. Declare one, or let a client do it."),
      h("div", { class: "row end" },
        trail.length ? h("button", { type: "button", class: "small", onclick: () => { context.memory.trail = trail.slice(0, -1); context.refresh(); } }, "Back") : null,
        said.next ? h("button", { type: "button", class: "small", onclick: () => { context.memory.trail = [...trail, said.next]; context.refresh(); } }, "More") : null)),
  );
  if (typing) { input.focus(); input.setSelectionRange(search.length, search.length); }
}

async function declare(context) {
  const form = await ask("Declare a queue", "It is durable, with retries and dead letters, unless it is a stream.", "Declare", [
    field("Name", { name: "name", required: true, autofocus: true }),
    field("Type", { name: "type" }, "select", ["classic", "quorum", "stream", "ephemeral"].map((kind) => h("option", {}, kind))),
  ]);
  if (!form) return;
  await context.act(async () => {
    await put(path`/queues/${context.host || "/"}/${form.name}`, { type: form.type });
    notice(`The queue ${form.name} is there.`);
  });
}
