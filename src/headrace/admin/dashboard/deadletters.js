// Queues of dead letters: look at them, send them back, move or purge them.

import { get, path, post } from "./api.js";
import { ask, count, field, h, notice, number, show, table } from "./dom.js";
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
        h("button", { type: "button", class: "small main", disabled: !grave.messages, onclick: () => redrive(context, host, grave) }, "Send back"),
        h("button", { type: "button", class: "small", disabled: !grave.messages, onclick: () => move(context, host, grave) }, "Move"),
        h("button", { type: "button", class: "small danger", disabled: !grave.messages, onclick: () => purge(context, host, grave) }, "Purge"))],
    ], said.items, "There are none, and no queue for them yet.")),
    memory.browser || null,
  );
}

function pageOf(context, host, name) {
  const base = path`/queues/${host}/${name}`;
  const actions = (message, load) => h("button", { type: "button", class: "small", onclick: () => context.act(async () => {
    const done = await post(`${base}/dead-letters/redrive?exact=true`, { offset: message.offset, until: message.offset + 1 });
    notice(done.messages ? `Message #${message.offset} is back where it died.` : `Message #${message.offset} stays: its queue is gone, or a consumer has it.`);
    load("");
  }) }, "Send back");
  return { context, base, host, name, actions };
}

/** What an action is about: how many messages of which queue. */
function meant(grave) {
  const waiting = count(grave.messages, "message");
  return grave.has_others ? `the dead letters among the ${waiting} of ${grave.queue}` : `the ${waiting} of ${grave.queue}`;
}

function at(host, grave, verb) {
  return `${path`/queues/${host}/${grave.queue}`}/dead-letters/${verb}?exact=true`;
}

async function redrive(context, host, grave) {
  if (await ask("Send dead letters back", `Up to 10,000 of ${meant(grave)} go back to the queues they died in, in steps of 250.`, "Send back")) {
    await context.act(async () => {
      const done = await post(at(host, grave, "redrive"));
      notice(`${count(done.messages, "message")} of ${grave.queue} went back.`);
    });
  }
}

async function move(context, host, grave) {
  const form = await ask("Move dead letters", `Up to 10,000 of ${meant(grave)} go to another queue, as they are.`, "Move",
    field("To queue", { name: "to", required: true, autofocus: true }));
  if (form) await context.act(async () => {
    const done = await post(at(host, grave, "move"), { to: form.to });
    notice(`${count(done.messages, "message")} of ${grave.queue} moved to ${form.to}.`);
  });
}

async function purge(context, host, grave) {
  if (await ask("Purge dead letters", `This drops ${meant(grave)}, for good.`, "Purge", [], "danger")) {
    await context.act(async () => {
      let dropped = 0;
      for (let offset = 0; offset !== null;) {
        const done = await post(at(host, grave, "purge"), { offset });
        dropped += done.messages;
        offset = done.next;
      }
      notice(`${count(dropped, "message")} of ${grave.queue} are gone.`);
    });
  }
}
