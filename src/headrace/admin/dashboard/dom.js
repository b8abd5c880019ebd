// Elements, numbers and times as people read them. No network, no pages.

/** An element: h("td", {class: "n"}, "5"). Attributes that start with "on" are listeners; null and false are left out. */
export function h(name, attributes, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "value") element.value = value;
    else element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.flat(9).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export function show(...children) {
  document.getElementById("content").replaceChildren(...children.filter((child) => child));
}

export function number(value) {
  return Math.round(value).toLocaleString("en");
}

export function count(value, noun) {
  return `${number(value)} ${noun}${value === 1 ? "" : "s"}`;
}

export function rate(value) {
  return value >= 100 ? number(value) : value.toFixed(value && value < 10 ? 1 : 0);
}

export function bytes(value) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  while (value >= 1000 && unit < units.length - 1) { value /= 1000; unit += 1; }
  return `${unit && value < 100 ? value.toFixed(1) : Math.round(value)} ${units[unit]}`;
}

export function duration(ms) {
  if (ms === null || ms === undefined) return "-";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const s = ms / 1000;
  if (s < 120) return `${s.toFixed(s < 10 ? 1 : 0)} s`;
  if (s < 7200) return `${Math.round(s / 60)} min`;
  if (s < 172800) return `${Math.round(s / 3600)} h`;
  return `${Math.round(s / 86400)} d`;
}

export function micros(us) {
  return us >= 1000 ? `${(us / 1000).toFixed(us < 10000 ? 1 : 0)} ms` : `${us} us`;
}

/** A table: columns are [title, cell(item), "n" for numbers]. On a phone every row becomes a card. */
export function table(columns, items, empty) {
  if (!items.length) return h("p", { class: "empty" }, empty);
  const head = columns.map(([title, , kind]) => h("th", { class: kind, scope: "col" }, title));
  const rows = items.map((item) =>
    h("tr", {}, columns.map(([title, cell, kind]) => h("td", { class: kind, "data-label": title }, cell(item)))));
  return h("div", { class: "scroll" },
    h("table", { class: "cards" }, h("thead", {}, h("tr", {}, head)), h("tbody", {}, rows)));
}

export function tile(label, value, note) {
  return h("div", { class: "card tile" },
    h("div", { class: "label" }, label), h("div", { class: "value" }, value), note ? h("div", { class: "note" }, note) : null);
}

export function tag(text, kind) {
  return h("span", { class: `tag ${kind || ""}` }, text);
}

export function notice(text, kind) {
  const element = h("div", { class: `notice ${kind || ""}` }, text);
  document.getElementById("notices").append(element);
  setTimeout(() => element.remove(), 5000);
}

/** Ask before something is done; resolves to the form's values, or to null when it is cancelled. */
export function ask(title, text, button, fields, kind) {
  return new Promise((resolve) => {
    let answer = null;
    const form = h("form", { class: "form", method: "dialog", onsubmit: () => {
      answer = Object.fromEntries(new FormData(form));
    } },
      h("h2", {}, title), text ? h("p", {}, text) : null, fields || [],
      h("div", { class: "row end" },
        h("button", { type: "button", onclick: () => dialog.close() }, "Cancel"),
        h("button", { type: "submit", class: kind || "main" }, button)));
    const dialog = h("dialog", { onclose: () => { dialog.remove(); resolve(answer); } }, form);
    document.body.append(dialog);
    dialog.showModal();
  });
}

export function field(label, attributes, name = "input", ...children) {
  return h("label", {}, label, h(name, attributes, ...children));
}
