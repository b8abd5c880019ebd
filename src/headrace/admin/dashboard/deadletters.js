// Queues of dead letters: look at them, send them back, move or purge them.

import { get, path, post } from "./api.js";
import { ask, field, h, notice, number, show, table } from "./dom.js";
import { browser } from "./queue.js";

export async function deadLetters(context) {
  const host = context.host || "/";
  const memory = context.memory;
  const said = await get(path`/dead-letters/${host}`);
  const open = (grave) => {
    memory.open = grave.queue;
    memory.browser = browser(pageOf(context, host, grave.queue), "dead-letters");
    memory.browser.load("");
    context.refresh();
  };
  show(
    h("div", { class: "head" }, h("h1", {}, "Dead letters")),
    h("section", { class: "card" }, table([
      ["Queue", (grave) => h("a", { href: "#/dead-letters", onclick: (event) => { event.preventDefault(); open(grave); } }, grave.queue)],
      ["Of", (grave) => grave.origin],
      ["Messages", (grave) => number(grave.messages), "n"],
      ["", (grave) => h("div", { class: "row end" },
        h("button", { type: "button", class: "small", onclick: () => open(grave) }, "Look"),
        h("button", { type: "button", class: "small main", disabled: !grave.messages, onclick: () => redrive(context, host, grave.queue) }, "Send back"),
        h("button", { type: "button", class: "small", disabled: !grave.messages, onclick: () => move(context, host, grave.queue) }, "Move"),
        h("button", { type: "button", class: "small danger", disabled: !grave.messages, onclick: () => purge(context, host, grave.queue) }, "Purge"))],
    ], said.items, "There are none, and no queue for them yet.")),
    memory.browser || null,
  );
}

function pageOf(context, host, name) {
  const base = path`/queues/${host}/${name}`;
  const actions = (message, load) => h("button", { type: "button", class: "small", onclick: () => context.act(async () => {
    await post(`${base}/dead-letters/redrive`, { offset: message.offset, limit: 1 });
    notice(`Message #${message.offset} is back where it died.`);
    load("");
  }) }, "Send back");
  return { context, base, host, name, actions };
}

async function redrive(context, host, name) {
  if (await ask("Send dead letters back", `Those of ${name} go back to the queues they died in, in one commit.`, "Send back")) {
    await context.act(async () => {
      const done = await post(`${path`/queues/${host}/${name}`}/dead-letters/redrive`);
      notice(`${number(done.messages)} went back.`);
    });
  }
}

async function move(context, host, name) {
  const form = await ask("Move dead letters", `Those of ${name} go to another queue, as they are.`, "Move",
    field("To queue", { name: "to", required: true, autofocus: true }));
  if (form) await context.act(async () => {
    const done = await post(`${path`/queues/${host}/${name}`}/dead-letters/move`, { to: form.to });
    notice(`${number(done.messages)} moved to ${form.to}.`);
  });
}

async function purge(context, host, name) {
  if (await ask("Purge dead letters", `All of ${name} are dropped, for good.`, "Purge", [], "danger")) {
    await context.act(async () => {
      const done = await post(`${path`/queues/${host}/${name}`}/dead-letters/purge`);
      notice(`${number(done.messages)} are gone.`);
    });
  }
}
