// Lines over time, drawn as SVG.

import { h } from "./dom.js";

const NAMESPACE = "http://www.w3.org/2000/svg";
const WIDTH = 600;
const HEIGHT = 150;
const BOTTOM = 16;

function svg(name, attributes, ...children) {
  const element = document.createElementNS(NAMESPACE, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

function nice(top) {
  if (top <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(top));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= top);
}

/** A chart of several series: [[name, values], ...]; `format` says how a value is written, `ms` how far samples are apart. */
export function chart(title, series, format, ms) {
  const length = Math.max(2, ...series.map(([, values]) => values.length));
  const top = nice(Math.max(0, ...series.flatMap(([, values]) => values)));
  const x = (at, count) => ((length - count + at) / (length - 1)) * WIDTH;
  const y = (value) => HEIGHT - BOTTOM - (value / top) * (HEIGHT - BOTTOM - 10);
  const parts = [];
  for (const share of [0, 0.5, 1]) {
    parts.push(svg("line", { class: "grid", x1: 0, x2: WIDTH, y1: y(top * share), y2: y(top * share) }));
  }
  series.forEach(([, values], index) => {
    if (!values.length) return;
    const line = values.map((value, at) => `${at ? "L" : "M"}${x(at, values.length).toFixed(1)} ${y(value).toFixed(1)}`).join("");
    const floor = y(0).toFixed(1);
    parts.push(svg("path", { class: `area s${index}`, d: `${line}L${WIDTH} ${floor}L${x(0, values.length).toFixed(1)} ${floor}Z` }));
    parts.push(svg("path", { class: `s${index}`, d: line }));
  });
  const said = series.map(([name, values]) => `${name} ${format(values.at(-1) || 0)}`).join(", ");
  const picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": `${title}: ${said}` }, ...parts);
  const legend = series.map(([name, values], index) =>
    h("span", {}, h("i", { class: `s${index}` }), `${name} `, h("b", {}, format(values.at(-1) || 0))));
  const seconds = Math.round(((length - 1) * ms) / 1000);
  return h("section", { class: "card chart" },
    h("h2", {}, title),
    picture,
    h("div", { class: "legend" }, legend, h("span", {}, `up to ${format(top)}, last ${seconds} s`)));
}
