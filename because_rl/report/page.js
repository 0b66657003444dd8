"use strict";
// One view at a time, films to go through, and graphs that say what an edge rests on. Without this script the page
// shows everything, one below the other.
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
  const target = document.getElementById(box.dataset.of);
  box.addEventListener("change", () => target.classList.toggle("no-" + box.dataset.toggle, !box.checked));
}

// Films: all frames are one picture, of which the frame's share is seen ----------------------------------
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

function row(name, value) {
  const line = document.createElement("tr");
  for (const text of [name, value]) line.insertCell().textContent = text;
  return line;
}

for (const box of all(".graph")) {
  const svg = box.querySelector("svg"), panel = box.querySelector(".told-edge"), hint = panel.innerHTML;
  const edges = JSON.parse(box.querySelector("script").textContent);
  const paths = new Map(all("path", svg).map((path) => [+path.dataset.edge, path]));
  let kept = null;

  const tell = (title, rows, chosen) => {
    const [head, body] = ["h4", "table"].map((name) => document.createElement(name));
    head.textContent = title;
    head.style.margin = ".2rem 0";
    body.append(...rows);
    panel.replaceChildren(head, body);
    svg.classList.add("busy");
    for (const [n, path] of paths) path.classList.toggle("on", chosen.includes(n));
  };
  const clear = () => {
    if (kept) return kept();
    panel.innerHTML = hint;
    svg.classList.remove("busy");
    for (const path of paths.values()) path.classList.remove("on");
  };
  const ofEdge = (n) => {
    const e = edges[n];
    const rows = [row("status", e.status), row("p", number(e.p)), row("weight", number(e.weight))];
    if (e.weight_ci95) rows.push(row("its 95%", e.weight_ci95.map(number).join(" to ")));
    rows.push(row("effect", number(e.effect)));
    if (e.verdict) rows.push(row("the truth", e.verdict));
    if (e.why) rows.push(row("why", e.why));
    tell(`${e.from} → ${e.to}′`, rows, [n]);
  };
  const ofNode = (node) => {
    const { side, name } = node.dataset;
    const mine = [...paths.keys()].filter((n) => edges[n][side] === name);
    const other = side === "from" ? "to" : "from";
    const rests = (e) => `p ${number(e.p)}, weight ${e.weight.toFixed(2)}`;
    const rows = mine.map((n) => row(edges[n][other] + (other === "to" ? "′" : ""), rests(edges[n])));
    tell(side === "from" ? `${name} drives` : `${name}′ listens to`, rows, mine);
  };
  for (const [n, path] of paths) {
    path.addEventListener("pointerenter", () => ofEdge(n));
    path.addEventListener("pointerleave", clear);
    path.addEventListener("click", () => { kept = () => ofEdge(n); kept(); });
  }
  for (const node of all(".node", svg)) {
    node.addEventListener("pointerenter", () => ofNode(node));
    node.addEventListener("pointerleave", clear);
    node.addEventListener("focus", () => { kept = () => ofNode(node); kept(); });
    node.addEventListener("blur", () => { kept = null; clear(); });
  }
  svg.addEventListener("click", (event) => { if (event.target === svg) { kept = null; clear(); } });
  const slider = box.querySelector("input[type=range]"), said = box.querySelector("output");
  slider?.addEventListener("input", () => {
    said.textContent = (+slider.value).toFixed(2);
    for (const [n, path] of paths) path.classList.toggle("weak", edges[n].weight < +slider.value);
  });
}

show(false);
