// Who is connected and who consumes.

import { get, path, query, remove } from "./api.js";
import { ask, bytes, h, notice, number, show, table, tag } from "./dom.js";

export async function connections(context) {
  const [said, consumers] = await Promise.all([
    get("/connections?limit=200"), get(`/consumers${query({ vhost: context.host || "/", limit: 200 })}`),
  ]);
  const shown = said.items.filter((connection) => !context.host || connection.vhost === context.host);
  show(
    h("div", { class: "head" }, h("h1", {}, "Connections")),
    h("section", { class: "card" }, table([
      ["Client", (connection) => [h("b", {}, connection.client_id || connection.name), h("div", { class: "note mono" }, connection.name)]],
      ["Protocol", (connection) => [tag(connection.protocol, "info"), " ", connection.is_tls ? tag("TLS", "good") : null, " ", connection.state === "blocked" ? tag("blocked", "warn") : null]],
      ["User", (connection) => connection.user],
      ["Host", (connection) => connection.vhost],
      ["Channels", (connection) => number(connection.channels), "n"],
      ["Consumers", (connection) => number(connection.consumers), "n"],
      ["Received", (connection) => bytes(connection.received_bytes), "n"],
      ["Sent", (connection) => bytes(connection.sent_bytes), "n"],
      ["", (connection) => h("button", { type: "button", class: "small danger", onclick: () => end(context, connection) }, "End")],
    ], shown, "Nobody is connected.")),
    h("section", { class: "card" }, h("h2", {}, "Consumers"), table([
      ["Consumer", (consumer) => h("span", { class: "mono" }, consumer.name)],
      ["Queue", (consumer) => consumer.queue],
      ["Group", (consumer) => consumer.group],
      ["Connection", (consumer) => consumer.connection],
      ["Holds", (consumer) => number(consumer.unsettled), "n"],
    ], consumers.items, "Nobody consumes.")),
  );
}

async function end(context, connection) {
  if (await ask("End this connection", `${connection.client_id || connection.name} is told, and may connect again. Queues that it has for itself go with it; what its consumers hold goes back in line.`, "End", [], "danger")) {
    await context.act(async () => {
      await remove(path`/connections/${connection.name}`);
      notice("The connection is ended.");
    });
  }
}
