// Messages as people read them: text, JSON or hex, with everything they say about themselves.

import { bytes, h, tag } from "./dom.js";

function raw(message) {
  if (message.payload_encoding === "text") return new TextEncoder().encode(message.payload);
  return Uint8Array.from(atob(message.payload), (letter) => letter.charCodeAt(0));
}

function hex(data) {
  const lines = [];
  for (let at = 0; at < data.length; at += 16) {
    const part = [...data.slice(at, at + 16)];
    const digits = part.map((byte) => byte.toString(16).padStart(2, "0")).join(" ").padEnd(47);
    const letters = part.map((byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : ".")).join("");
    lines.push(`${at.toString(16).padStart(6, "0")}  ${digits}  ${letters}`);
  }
  return lines.join("\n");
}

function json(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return null;
  }
}

/** The payload in the form that was chosen; what cannot be shown so is shown in the next best. */
export function payload(message, form) {
  const pretty = message.payload_encoding === "text" ? json(message.payload) : null;
  if (form === "hex" || message.payload_encoding !== "text") return hex(raw(message));
  return form === "json" && pretty !== null ? pretty : message.payload;
}

export function messageView(message, form, actions) {
  const facts = { ...message.properties };
  const headers = facts.headers || {};
  delete facts.headers;
  for (const name of ["exchange", "client_id", "protocol", "expires_at", "not_before"]) if (message[name]) facts[name] = message[name];
  const rows = [...Object.entries(facts), ...Object.entries(headers).map(([name, value]) => [`headers.${name}`, value])];
  return h("article", { class: "message" },
    h("div", { class: "meta" },
      h("span", { class: "offset" }, `#${message.offset}`),
      h("span", {}, message.timestamp ? new Date(message.timestamp).toLocaleString() : ""),
      h("span", { class: "mono" }, message.topic),
      h("span", {}, bytes(message.payload_bytes)),
      message.is_cut ? tag("cut", "warn") : null,
      headers["_dlq_reason"] ? tag(headers["_dlq_reason"], "bad") : null,
      h("span", { class: "actions" }, actions || [])),
    h("pre", { tabindex: "0" }, payload(message, form)),
    rows.length ? h("details", {}, h("summary", {}, `Properties (${rows.length})`),
      h("dl", {}, rows.map(([name, value]) => [h("dt", {}, name), h("dd", { class: "mono" }, typeof value === "string" ? value : JSON.stringify(value))]))) : null);
}

export function forms(chosen, choose) {
  return h("div", { class: "row", role: "group", "aria-label": "How payloads are shown" }, ["json", "text", "hex"].map((form) =>
    h("button", { type: "button", class: `small ${form === chosen ? "main" : ""}`, "aria-pressed": String(form === chosen), onclick: () => choose(form) }, form)));
}
