// One queue: charts, groups, consumers, its messages and dead letters, and what can be done with them.

import { get, path, post, query, remove } from "./api.js";
import { chart } from "./chart.js";
import { ask, bytes, count, duration, field, h, notice, number, show, table, tag, tile } from "./dom.js";
import { forms, messageView } from "./messages.js";
import { publishForm } from "./publish.js";

export async function queue(context, host, name) {
  const base = path`/queues/${host}/${name}`;
  const memory = context.memory;
  const [said, groups, consumers] = await Promise.all([
    get(base), get(`${base}/groups`), get(`/consumers${query({ vhost: host, limit: 1000 })}`),
  ]);
  const mine = consumers.items.filter((consumer) => consumer.queue === name);
  const isStream = said.type === "stream";
  const page = { context, base, host, name, isStream, memory, total: said.messages, waiting: said.waiting };
  show(
    h("div", { class: "head" },
      h("h1", { class: "mono" }, name), tag(said.type, isStream ? "good" : "info"), said.durable ? tag("durable") : tag("transient", "warn"),
      h("div", { class: "actions" },
        h("button", { type: "button", class: "main", onclick: () => publishForm(context, host, name) }, "Publish a message"),
        isStream ? null : h("button", { type: "button", onclick: () => move(page) }, "Move messages"),
        isStream ? null : h("button", { type: "button", class: "danger", onclick: () => purge(page) }, "Purge"),
        h("button", { type: "button", class: "danger", onclick: () => drop(page) }, "Delete"))),
    said.state === "damaged" ? h("div", { class: "card trouble", role: "alert" }, said.reason) : null,
    h("div", { class: "tiles" },
      tile(isStream ? "Messages" : "Waiting", number(isStream ? said.next_offset - said.first_offset : said.counters.ready), `offsets ${number(said.first_offset)} to ${number(said.next_offset)}`),
      isStream ? null : tile("Delayed", number(said.counters.delayed), "retried or published for later"),
      tile("With consumers", number(said.counters.unsettled), count(said.consumers, "consumer")),
      tile("Oldest", duration(said.oldest_age_ms), "has waited so long"),
      tile("Size", bytes(said.bytes), count(said.bindings, "binding")),
      said.source ? tile("Behind its source", number(said.source.lag), `${said.source.queue}: ${said.source.state}`) : null),
    h("div", { class: "charts" },
      chart("Messages per second", [["in", said.history.published], ["out", said.history.delivered], ["acknowledged", said.history.acknowledged]], (value) => value.toFixed(1), 2000),
      chart("Depth", [[isStream ? "not read" : "waiting", said.history.ready], ["delayed", said.history.delayed], ["with consumers", said.history.unsettled]], number, 2000),
      chart("Lag of the group furthest behind", [["messages", said.history.lag]], number, 2000),
      chart("Age of the oldest message", [["age", said.history.oldest_age_ms]], duration, 2000)),
    h("section", { class: "card" }, h("h2", {}, "Groups"), groupTable(page, groups.items)),
    h("section", { class: "card" }, h("h2", {}, "Consumers"), table([
      ["Consumer", (consumer) => h("span", { class: "mono" }, consumer.name)],
      ["Group", (consumer) => consumer.group],
      ["Connection", (consumer) => consumer.connection],
      ["Prefetch", (consumer) => consumer.prefetch || "none", "n"],
      ["Holds", (consumer) => number(consumer.unsettled), "n"],
    ], mine, "Nobody consumes.")),
    memory.browser || (memory.browser = browser(page)),
  );
}

function groupTable(page, items) {
  const act = (group, verb, word) => h("button", { type: "button", class: "small", onclick: () => page.context.act(async () => {
    await post(`${page.base}/groups/${encodeURIComponent(group.name)}/${verb}`);
    notice(`The group ${group.name} is ${word}.`);
  }) }, verb === "pause" ? "Pause" : "Resume");
  return table([
    ["Group", (group) => [h("span", { class: "mono" }, group.name), " ", tag(group.mode), " ", group.is_paused ? tag("paused", "warn") : null]],
    ["Cursor", (group) => number(group.cursor), "n"],
    ["Committed", (group) => number(group.committed), "n"],
    ["Lag", (group) => number(group.lag), "n"],
    ["Delayed", (group) => number(group.delayed), "n"],
    ["Pending", (group) => number(group.pending), "n"],
    ["Redelivered", (group) => number(group.redelivered), "n"],
    ["Consumers", (group) => number(group.consumers), "n"],
    ["", (group) => h("div", { class: "row end" },
      group.is_paused ? act(group, "resume", "going on") : act(group, "pause", "paused"),
      group.mode === "stream" ? h("button", { type: "button", class: "small", onclick: () => seek(page, group) }, "Seek") : null,
      group.consumers || isKept(page, group) ? null : h("button", { type: "button", class: "small danger", onclick: () => forget(page, group) }, "Forget"))],
  ], items, "No group has read this queue yet.");
}

/** The default group of a work queue stays: without it nobody knows what was acknowledged. */
function isKept(page, group) {
  return !page.isStream && group.mode === "work" && group.name === "default";
}

async function seek(page, group) {
  const text = `The group ${group.name} of ${page.name} has ${count(group.lag, "message")} left to read. From its new position on it reads again; what it goes past it does not get. Enter first, next, an offset, or timestamp=<unix time>.`;
  const form = await ask(`Seek ${group.name}`, text, "Seek",
    field("Position", { name: "position", required: true, value: "first", autofocus: true }));
  if (form) await page.context.act(async () => {
    await post(`${page.base}/groups/${encodeURIComponent(group.name)}/seek`, { position: form.position });
    notice(`The group ${group.name} goes on at ${form.position}.`);
  });
}

async function forget(page, group) {
  const text = `The group ${group.name} of ${page.name} has not finished ${count(group.lag, "message")}. Its progress is lost; a group of that name begins anew.`;
  if (await ask(`Forget ${group.name}`, text, "Forget", [], "danger")) {
    await page.context.act(() => remove(`${page.base}/groups/${encodeURIComponent(group.name)}`));
  }
}

async function purge(page) {
  if (await ask(`Purge ${page.name}`, `${count(page.waiting, "message")} that wait in ${page.name} are dropped, for good. Those with consumers stay.`, "Purge", [], "danger")) {
    await page.context.act(async () => {
      const done = await post(`${page.base}/purge`);
      notice(`${count(done.messages, "message")} of ${page.name} are gone.`);
    });
  }
}

async function drop(page) {
  if (await ask(`Delete ${page.name}`, `The queue ${page.name} goes with ${count(page.total, "message")} and its groups.`, "Delete", [], "danger")) {
    await page.context.act(async () => {
      const done = await remove(page.base);
      notice(`${page.name} is gone with ${count(done.messages, "message")}.`);
      location.hash = "#/queues";
    });
  }
}

async function move(page) {
  const form = await ask(`Move messages of ${page.name}`, `Up to 10,000 of the ${count(page.waiting, "message")} that wait in ${page.name} go to another queue, in steps of 250.`, "Move",
    field("To queue", { name: "to", required: true, autofocus: true }));
  if (form) await page.context.act(async () => {
    const done = await post(`${page.base}/move`, { to: form.to });
    notice(`${count(done.messages, "message")} moved to ${form.to}.`);
  });
}

/** Messages without taking them; it keeps its place while the rest of the page is drawn anew. */
export function browser(page, kind = "messages") {
  const list = h("div", {});
  const state = { form: "json", offset: "", items: [], next: null };
  const from = h("input", { type: "text", inputmode: "numeric", placeholder: "Offset", "aria-label": "From offset", size: 8 });
  const bar = h("div", { class: "head" });
  const draw = () => {
    bar.replaceChildren(h("h2", {}, kind === "messages" ? "Messages" : "Dead letters"), forms(state.form, (form) => { state.form = form; draw(); }),
      h("div", { class: "actions" }, from, h("button", { type: "button", onclick: () => load(from.value.trim()) }, "Browse"),
        state.next !== null && state.items.length ? h("button", { type: "button", onclick: () => load(state.next) }, "Next") : null));
    list.replaceChildren(...(state.items.length
      ? state.items.map((message) => messageView(message, state.form, page.actions ? page.actions(message, load) : null))
      : [h("p", { class: "empty" }, state.asked ? "There are no messages from there on." : "Browsing takes nothing: consumers do not notice.")]));
  };
  const load = (offset) => page.context.act(async () => {
    const said = await get(`${page.base}/${kind}${query({ offset, limit: 20, exact: kind === "messages" ? "" : true })}`);
    Object.assign(state, { items: said.items, next: said.next, asked: true });
    draw();
  }, false);
  draw();
  const section = h("section", { class: "card", id: "browser" }, bar, list);
  section.load = load;
  return section;
}
