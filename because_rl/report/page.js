"use strict";
// Shows one view at a time, plays films, and shows the evidence for the edges of graphs. Without this script the page
// shows all views, one below the other.
document.documentElement.classList.add("js");
const all = (selector, inside = document) => [...inside.querySelectorAll(selector)];

// Views -------------------------------------------------------------------------------------------------
const views = all(".view");

function show(moved) {
  const wanted = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  const view = wanted?.closest(".view") ?? views[0];
  for (const other of views) other.classList.toggle("shown", other === view);
  for (const link of all("nav.views a")) {
    const here = link.hash === "#" + (view.dataset.under ?? view.id);
    here ? link.setAttribute("aria-current", "page") : link.removeAttribute("aria-current");
    if (here) link.scrollIntoView({ block: "nearest", inline: "nearest", behavior: "instant" });
  }
  for (const menu of all("select[data-menu]", view)) menu.value = "#" + view.id;
  for (const film of all(".film", view)) film.dataset.ready ?? ready(film);
  if (!moved) return;
  const inner = wanted && wanted !== view;
  inner ? wanted.scrollIntoView() : scrollTo({ top: 0, behavior: "instant" });
  view.querySelector("h2")?.focus({ preventScroll: true });
}
addEventListener("hashchange", () => show(true));
for (const menu of all("select[data-menu]")) menu.addEventListener("change", () => { location.hash = menu.value; });
for (const box of all("input[data-toggle]")) {
  const target = document.getElementById(box.dataset.target);
  box.addEventListener("change", () => target.classList.toggle("no-" + box.dataset.toggle, !box.checked));
}

// Films: all frames lie in one picture, of which one frame is visible ------------------------------------
function ready(film) {
  film.dataset.ready = "yes";
  const [button, slider] = ["button", "input"].map((name) => film.parentElement.querySelector(name));
  if (!button) return;
  const last = film.dataset.frames - 1;
  let timer = 0;
  const turn = (frame) => {
    slider.value = frame;
    film.style.objectPosition = `0 ${last ? (100 * frame) / last : 0}%`;
  };
  const stop = () => { clearInterval(timer); timer = 0; button.textContent = "Play"; };
  slider.addEventListener("input", () => { stop(); turn(+slider.value); });
  button.addEventListener("click", () => {
    if (timer) return stop();
    if (+slider.value === last) turn(0);
    button.textContent = "Pause";
    timer = setInterval(() => (+slider.value < last ? turn(+slider.value + 1) : stop()), 220);
  });
}

// Graphs ------------------------------------------------------------------------------------------------
const number = (value) => (value !== 0 && Math.abs(value) < 0.001 ? value.toExponential(1) : +value.toFixed(3) + "");

const pValue = (p) => (p > 0 ? number(p) : "< 1e-300");  // the smallest numbers are 0 in floating point

function row(name, value) {
  const line = document.createElement("tr");
  for (const text of [name, value]) line.insertCell().textContent = text;
  return line;
}

for (const box of all(".graph")) {
  const svg = box.querySelector("svg"), panel = box.querySelector(".edge-details"), hint = panel.innerHTML;
  const edges = JSON.parse(box.querySelector("script").textContent);
  const paths = new Map(all("path:not(.hit)", svg).map((path) => [+path.dataset.edge, path]));
  let pinned = null;  // shows the edge or factor that was clicked or focused

  const describe = (title, rows, chosen) => {
    const [head, body] = ["h4", "table"].map((name) => document.createElement(name));
    head.textContent = title;
    head.style.margin = ".2rem 0";
    body.append(...rows);
    panel.replaceChildren(head, body);
    svg.classList.add("busy");
    for (const [n, path] of paths) path.classList.toggle("on", chosen.includes(n));
  };
  const clear = () => {
    if (pinned) return pinned();
    panel.innerHTML = hint;
    svg.classList.remove("busy");
    for (const path of paths.values()) path.classList.remove("on");
  };
  const describeEdge = (n) => {
    const e = edges[n];
    const left = e.status === "undetermined" ? (e.kept ? ", kept" : ", left out") : "";
    const rows = [row("verdict", e.status + left)];
    if ("p" in e) rows.push(row("p", pValue(e.p)));
    rows.push(row("weight", number(e.weight)));
    if (e.weight_ci95) rows.push(row("95% interval", e.weight_ci95.map(number).join(" to ")));
    if ("effect" in e) rows.push(row("effect", number(e.effect)), row("detectable effect", e.detectable));
    if (e.truth) rows.push(row("true graph", e.truth));
    if (e.why) rows.push(row("why", e.why));
    if (e.needs) rows.push(row("would decide", e.needs));
    describe(`${e.from} → ${e.to}′`, rows, [n]);
  };
  const describeNode = (node) => {
    const { side, name } = node.dataset;
    const incident = [...paths.keys()].filter((n) => edges[n][side] === name);
    const other = side === "from" ? "to" : "from";
    const remark = (e) => (e.truth?.startsWith("a ") ? `, ${e.truth}` : e.status === "undetermined" ? ", undetermined" : "");
    const evidence = (e) => ("p" in e ? `p ${pValue(e.p)}, ` : "") + `weight ${e.weight.toFixed(2)}` + remark(e);
    const rows = incident.map((n) => row(edges[n][other] + (other === "to" ? "′" : ""), evidence(edges[n])));
    describe(side === "from" ? `Effects of ${name}` : `Causes of ${name}′`, rows, incident);
  };
  for (const path of all("path", svg)) {
    const n = +path.dataset.edge;
    path.addEventListener("pointerenter", () => describeEdge(n));
    path.addEventListener("pointerleave", clear);
    path.addEventListener("click", () => { pinned = () => describeEdge(n); pinned(); });
  }
  for (const node of all(".node", svg)) {
    node.addEventListener("pointerenter", () => describeNode(node));
    node.addEventListener("pointerleave", clear);
    node.addEventListener("focus", () => { pinned = () => describeNode(node); pinned(); });
    node.addEventListener("blur", () => { pinned = null; clear(); });
  }
  svg.addEventListener("click", (event) => { if (event.target === svg) { pinned = null; clear(); } });
  const slider = box.querySelector("input[type=range]"), output = box.querySelector("output");
  slider?.addEventListener("input", () => {
    output.textContent = (+slider.value).toFixed(2);
    for (const path of all("path", svg)) path.classList.toggle("weak", edges[path.dataset.edge].weight < +slider.value);
  });
}

show(false);
