// The form for a test message.

import { path, post } from "./api.js";
import { ask, field, h, notice } from "./dom.js";

export async function publishForm(context, host, queue) {
  const form = await ask("Publish a message", "To a queue by its name, through an exchange, or to a topic.", "Publish", [
    h("div", { class: "pair" },
      field("Exchange (empty: the queue by name)", { name: "exchange" }),
      field("Routing key", { name: "routing_key", value: queue, required: true })),
    field("Payload", { name: "payload", autofocus: true }, "textarea"),
    h("div", { class: "pair" },
      field("Content type", { name: "content_type", value: "application/json" }),
      field("Priority", { name: "priority", type: "number", min: 0, max: 255, value: "0" })),
    field("Headers, as JSON", { name: "headers", value: "{}" }),
  ]);
  if (!form) return;
  await context.act(async () => {
    let headers;
    try {
      headers = JSON.parse(form.headers || "{}");
    } catch {
      throw new Error("the headers are not JSON");
    }
    const said = await post(path`/publish/${host}`, {
      exchange: form.exchange,
      routing_key: form.routing_key,
      payload: form.payload,
      properties: { content_type: form.content_type, priority: Number(form.priority || 0), headers },
    });
    notice(said.queues ? `Stored in ${said.queues} queue${said.queues === 1 ? "" : "s"}.` : "No queue took it.", said.queues ? "" : "bad");
  });
}
