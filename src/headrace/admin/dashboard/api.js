// Calls of the HTTP API, with the login that the form was given. It lives as long as the tab does.

const KEY = "headrace-login";

export class Problem extends Error {
  constructor(status, reason) {
    super(reason);
    this.status = status;
  }
}

export function login(user, password) {
  const text = new TextEncoder().encode(`${user}:${password}`);
  sessionStorage.setItem(KEY, btoa(String.fromCharCode(...text)));
}

export function leave() {
  sessionStorage.removeItem(KEY);
}

export function isLoggedIn() {
  return sessionStorage.getItem(KEY) !== null;
}

async function call(method, path, body) {
  const headers = { "X-Requested-With": "dashboard", Authorization: `Basic ${sessionStorage.getItem(KEY) || ""}` };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(`api/v1${path}`, { method, headers, body: body === undefined ? undefined : JSON.stringify(body) });
  } catch {
    throw new Problem(0, "the broker does not answer");
  }
  const text = await response.text();
  const said = text ? JSON.parse(text) : null;
  if (!response.ok) throw new Problem(response.status, said ? said.reason : response.statusText);
  return said;
}

export const get = (path) => call("GET", path);
export const put = (path, body) => call("PUT", path, body || {});
export const post = (path, body) => call("POST", path, body || {});
export const remove = (path) => call("DELETE", path);

/** A path with names in it: path`/queues/${host}/${queue}`. */
export function path(texts, ...names) {
  return texts.reduce((done, text, at) => done + encodeURIComponent(names[at - 1]) + text);
}

export function query(values) {
  const kept = Object.entries(values).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  return kept.length ? `?${new URLSearchParams(kept)}` : "";
}
