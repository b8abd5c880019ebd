// Which page is shown, drawn anew every two seconds; logging in and out; light and dark.

import { get, isLoggedIn, leave, login } from "./api.js";
import { connections } from "./connections.js";
import { deadLetters } from "./deadletters.js";
import { field, h, notice, show } from "./dom.js";
import { overview } from "./overview.js";
import { pipelines } from "./pipelines.js";
import { queue } from "./queue.js";
import { queues } from "./queues.js";

const EVERY_MS = 2000;
const PAGES = { overview: ["Overview", overview], queues: ["Queues", queues], "dead-letters": ["Dead letters", deadLetters], connections: ["Connections", connections], pipelines: ["Pipelines", pipelines] };

const context = { host: "", memory: {}, refresh: () => draw(), act };
let timer = 0;
let drawing = 0;

/** Do something that the user asked for, and say when it fails. */
async function act(work, redraw = true) {
  try {
    await work();
  } catch (problem) {
    if (problem.status === 401) return loginPage("Your login is not valid any more.");
    notice(problem.message, "bad");
  }
  if (redraw) draw();
}

async function draw() {
  clearTimeout(timer);
  if (!isLoggedIn()) return loginPage("");
  const number = (drawing += 1);
  const [name, ...names] = location.hash.replace(/^#\//, "").split("/").map(decodeURIComponent);
  const [, page] = PAGES[name] || PAGES.overview;
  menu(PAGES[name] ? name : "overview");
  const busy = document.querySelector("dialog[open]") || document.querySelector("details[open]") || isSelecting();
  if (!busy || context.fresh) {
    context.fresh = false;
    try {
      await (name === "queues" && names.length === 2 ? queue(context, ...names) : page(context));
    } catch (problem) {
      if (problem.status === 401) return loginPage("Login failed.");
      if (number === drawing) show(h("div", { class: "card trouble", role: "alert" }, problem.message));
    }
  }
  if (number === drawing) timer = setTimeout(draw, EVERY_MS);
}

function isSelecting() {
  const focus = document.activeElement;
  return Boolean(String(window.getSelection())) || (focus && focus.closest && focus.closest("#browser") && focus.tagName === "INPUT");
}

function menu(current) {
  document.getElementById("bar").hidden = false;
  document.getElementById("nav").replaceChildren(...Object.entries(PAGES).map(([name, [title]]) =>
    h("a", { href: `#/${name}`, "aria-current": name === current ? "page" : null }, title)));
}

function loginPage(problem) {
  clearTimeout(timer);
  drawing += 1;
  leave();
  document.getElementById("bar").hidden = true;
  const form = h("form", { class: "form", onsubmit: async (event) => {
    event.preventDefault();
    const said = Object.fromEntries(new FormData(form));
    login(said.user, said.password);
    try {
      await enter();
    } catch (error) {
      loginPage(error.status === 401 ? "That is not the right name and password." : error.message);
    }
  } },
    field("User", { name: "user", autocomplete: "username", required: true, autofocus: true }),
    field("Password", { name: "password", type: "password", autocomplete: "current-password", required: true }),
    problem ? h("p", { class: "error", role: "alert" }, problem) : null,
    h("button", { class: "main", type: "submit" }, "Sign in"));
  show(h("div", { class: "card login" }, h("div", { class: "brand" }, h("img", { src: "dashboard/icon.svg", alt: "", width: 36, height: 36 }), "Headrace"), form));
  form.querySelector("input").focus();
}

async function enter() {
  const said = await get("/overview");
  const select = document.getElementById("host");
  select.replaceChildren(h("option", { value: "" }, "all"), ...said.vhosts.map((host) => h("option", { value: host }, host)));
  select.value = context.host;
  await turn();
}

/** Another page: forget what the last one kept. */
function turn() {
  context.memory = {};
  context.fresh = true;
  return draw();
}

function theme(name) {
  document.documentElement.dataset.theme = name;
}

const dark = window.matchMedia("(prefers-color-scheme: dark)");
theme(localStorage.getItem("headrace-theme") || (dark.matches ? "dark" : "light"));
dark.addEventListener("change", () => { if (!localStorage.getItem("headrace-theme")) theme(dark.matches ? "dark" : "light"); });
document.getElementById("theme").addEventListener("click", () => {
  theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
  localStorage.setItem("headrace-theme", document.documentElement.dataset.theme);
});
document.getElementById("leave").addEventListener("click", () => loginPage(""));
document.getElementById("host").addEventListener("change", (event) => { context.host = event.target.value; turn(); });
window.addEventListener("hashchange", () => { document.getElementById("content").focus({ preventScroll: true }); turn(); });

if (isLoggedIn()) enter().catch((problem) => loginPage(problem.status === 401 ? "" : problem.message));
else loginPage("");
