// The map: a cell for each link. A panel is a texture with a pixel for each cell, drawn with the part of it that is
// in view; all panels of a tier are moved and zoomed together. Where cells are smaller than a few pixels, those that
// matter are drawn larger than they are.

import { $, element, json } from "./tools.js";

export const EVIDENCE = ["unknown", "good", "suspect", "lossy", "broken"];
const DECISIONS = ["none", "denied", "drained"];
export const STATES = [...EVIDENCE, "denied", "drained"];

// Rectangles with more cells across have more room.
const LARGE = 128;
const LEAST_MARK = 5, LEAST_LINES = 6, MOST_MARKS = 20_000;
const ZOOM_STEP = 1.5, LEAST_CELLS = 8;
// A pointer that moves so many pixels while it is down drags; one that does not clicks.
const DRAGS = 4;
const NAMES_AT_ONCE = 1024;

let panels = [];
let cells = new Uint8Array(0);
let show = () => {};
const views = new Map();
const names = new Map();
const stale = new Set();
let paint = new Uint32Array(256), css = [], matters = new Uint8Array(256), ink = "#000";

// --- what a byte says -------------------------------------------------------------------------------------------

// What is decided hides what is known only where the link works: a broken one stays red.
function stateOf(byte) {
  const evidence = byte & 15, decision = byte >> 4;
  return decision && evidence < 3 ? EVIDENCE.length + decision - 1 : evidence;
}
function describe(byte) {
  const decision = byte >> 4;
  return EVIDENCE[byte & 15] + (decision ? `, ${DECISIONS[decision]}` : "");
}

export function readColours() {
  const style = getComputedStyle(document.documentElement);
  const read = (name) => style.getPropertyValue(name).trim();
  const states = STATES.map((state) => read(`--${state}`));
  ink = read("--ink");
  paint = new Uint32Array(256);
  for (let byte = 0; byte < 255; byte++) {
    const state = stateOf(byte), hex = states[state];
    if (!hex || byte >> 4 >= DECISIONS.length) continue;
    const [red, green, blue] = [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
    paint[byte] = 0xff000000 | blue << 16 | green << 8 | red;
    css[byte] = hex;
    matters[byte] = state >= 2 ? 1 : 0;
  }
  for (const made of panels) { fill(made); redraw(made); }
}

export async function nameOf(number) {
  const chunk = Math.floor(number / NAMES_AT_ONCE);
  if (!names.has(chunk)) {
    const asked = json(`names?first=${chunk * NAMES_AT_ONCE}&count=${NAMES_AT_ONCE}`);
    names.set(chunk, asked);
    asked.catch(() => names.delete(chunk));
  }
  return (await names.get(chunk))[number % NAMES_AT_ONCE];
}

// --- panels -----------------------------------------------------------------------------------------------------

export function buildPanels(fabric, showLink) {
  show = showLink;
  for (const made of panels) made.resized.disconnect();
  panels = [];
  names.clear();
  views.clear();
  stale.clear();
  const root = $("panels"), planes = new Map();
  root.replaceChildren();
  for (const panel of [...fabric.panels].sort((a, b) => b.tier - a.tier)) {
    if (!panel.rows || !panel.columns) continue;
    if (!planes.has(panel.plane)) planes.set(panel.plane, element("div", "", { class: "plane" }, element("h3", `plane ${panel.plane}`), element("div", "", { class: "rectangles" })));
    planes.get(panel.plane).lastChild.append(build(panel));
  }
  root.classList.toggle("large", panels.some(({ width }) => width > LARGE));
  root.append(...planes.values());
}

function build(panel) {
  const canvas = element("canvas", "", { tabindex: "0", role: "img" });
  // Columns are drawn as columns only if that is the shorter side: pictures stay wide.
  const turned = panel.rows > panel.columns;
  const width = turned ? panel.rows : panel.columns, height = turned ? panel.columns : panel.rows;
  canvas.style.aspectRatio = `${width} / ${Math.max(height, width / 12)}`;
  canvas.setAttribute("aria-label", `plane ${panel.plane}: ${panel.row_name} by ${panel.column_name}`);
  const texture = document.createElement("canvas");
  [texture.width, texture.height] = [width, height];
  const image = new ImageData(width, height);
  if (!views.has(panel.tier)) views.set(panel.tier, { x: 0, y: 0, zoom: 1 });
  const made = {
    panel, canvas, turned, width, height, texture, image, at: 0, changed: true, marked: new Set(), drag: null,
    pixels: new Uint32Array(image.data.buffer), view: views.get(panel.tier), context: canvas.getContext("2d"),
    painter: texture.getContext("2d"), resized: new ResizeObserver(() => resize(made)),
  };
  canvas.addEventListener("pointermove", (event) => pointed(made, event));
  canvas.addEventListener("pointerdown", (event) => { if (event.button === 0) made.drag = { x: event.clientX, y: event.clientY, moved: false }; });
  canvas.addEventListener("pointerup", () => { setTimeout(() => { made.drag = null; }); });
  canvas.addEventListener("pointerleave", () => { $("tip").hidden = true; });
  canvas.addEventListener("click", (event) => { if (!made.drag?.moved) open(made, placeAt(made, event)); });
  canvas.addEventListener("dblclick", (event) => zoomAt(made, ZOOM_STEP ** 4, ...within(made, event)));
  canvas.addEventListener("wheel", (event) => turnedWheel(made, event), { passive: false });
  canvas.addEventListener("keydown", (event) => pressed(made, event));
  canvas.addEventListener("focus", () => { redraw(made); announce(made); });
  canvas.addEventListener("blur", () => { redraw(made); $("tip").hidden = true; });
  panels.push(made);
  made.resized.observe(canvas);
  const caption = turned ? `${panel.rows} ${panel.row_name} across, ${panel.columns} ${panel.column_name}s down` : `${panel.columns} ${panel.column_name}s across, ${panel.rows} ${panel.row_name} down`;
  return element("div", "", {}, canvas, element("div", caption, { class: "caption" }));
}

function resize(made) {
  const box = made.canvas.getBoundingClientRect(), dots = window.devicePixelRatio || 1;
  const [width, height] = [Math.max(1, Math.round(box.width * dots)), Math.max(1, Math.round(box.height * dots))];
  if (made.canvas.width !== width || made.canvas.height !== height) [made.canvas.width, made.canvas.height] = [width, height];
  redraw(made);
}

// --- cells ------------------------------------------------------------------------------------------------------

const placeOf = ({ turned, panel }, x, y) => (turned ? x * panel.columns + y : y * panel.columns + x);
const xyOf = ({ turned, panel }, place) => {
  const row = Math.floor(place / panel.columns), column = place % panel.columns;
  return turned ? [row, column] : [column, row];
};

function put(made, place, byte) {
  const [x, y] = xyOf(made, place);
  made.pixels[y * made.width + x] = paint[byte];
  if (matters[byte]) made.marked.add(place);
  else made.marked.delete(place);
  made.changed = true;
}
function fill(made) {
  made.marked.clear();
  const { first, rows, columns } = made.panel;
  for (let place = 0; place < rows * columns; place++) put(made, place, cells[first + place] ?? 255);
}

export function setCells(bytes) {
  cells = bytes;
  for (const made of panels) { fill(made); redraw(made); }
}

// Words of a delta are little-endian: the number in the upper 24 bits, the byte below. Returns the numbers.
export function changeCells(delta) {
  const words = new DataView(Uint8Array.from(atob(delta), (character) => character.charCodeAt(0)).buffer);
  const numbers = [];
  for (let at = 0; at + 4 <= words.byteLength; at += 4) {
    const word = words.getUint32(at, true), number = word >>> 8;
    if (number >= cells.length) continue;
    cells[number] = word & 255;
    numbers.push(number);
    const made = panels.find(({ panel }) => number >= panel.first && number < panel.first + panel.rows * panel.columns);
    if (made) { put(made, number - made.panel.first, word & 255); redraw(made); }
  }
  return numbers;
}

// --- drawing ----------------------------------------------------------------------------------------------------

function redraw(made) {
  if (!stale.size) requestAnimationFrame(drawStale);
  stale.add(made);
}
function drawStale() {
  const now = [...stale];
  stale.clear();
  now.forEach(draw);
}

// How many cells are in view, across and down: of a flat rectangle one direction is zoomed only.
const inView = ({ view, width, height }) => [width, height].map((size) => size / Math.min(view.zoom, Math.max(1, size / LEAST_CELLS)));
const mostZoom = ({ width, height }) => Math.max(1, width / LEAST_CELLS, height / LEAST_CELLS);

function draw(made) {
  const { canvas, context, view, width, height, panel } = made;
  if (made.changed) {
    made.painter.putImageData(made.image, 0, 0);
    made.changed = false;
  }
  const [wide, high] = inView(made), across = canvas.width / wide, down = canvas.height / high;
  const left = -view.x * across, top = -view.y * down;
  context.clearRect(0, 0, canvas.width, canvas.height);
  // Of cells smaller than a pixel the mean is shown.
  context.imageSmoothingEnabled = Math.min(across, down) < 1;
  context.drawImage(made.texture, left, top, width * across, height * down);
  const cell = Math.min(across, down);
  if (cell >= LEAST_LINES) lines(made, across, down, left, top);
  else if (made.marked.size <= MOST_MARKS) {
    const mark = [across, down].map((size) => Math.ceil(Math.max(size, LEAST_MARK)));
    for (const place of made.marked) {
      const [x, y] = xyOf(made, place);
      context.fillStyle = css[cells[panel.first + place]];
      context.fillRect(Math.round(left + (x + .5) * across - mark[0] / 2), Math.round(top + (y + .5) * down - mark[1] / 2), ...mark);
    }
  }
  if (document.activeElement === canvas) {
    const [x, y] = xyOf(made, made.at);
    context.strokeStyle = ink;
    context.lineWidth = 2;
    context.strokeRect(left + x * across - 1, top + y * down - 1, Math.max(across, LEAST_MARK) + 1, Math.max(down, LEAST_MARK) + 1);
  }
}

// Between large cells there are gaps.
function lines(made, across, down, left, top) {
  const { canvas, context, view, width, height } = made, [wide, high] = inView(made);
  for (let x = Math.floor(view.x) + 1; x <= Math.min(width, Math.ceil(view.x + wide)); x++) context.clearRect(Math.round(left + x * across) - 1, 0, 1, canvas.height);
  for (let y = Math.floor(view.y) + 1; y <= Math.min(height, Math.ceil(view.y + high)); y++) context.clearRect(0, Math.round(top + y * down) - 1, canvas.width, 1);
}

// --- moving and zooming -----------------------------------------------------------------------------------------

function look(made, x, y, zoom) {
  const { view, width, height } = made;
  view.zoom = Math.min(mostZoom(made), Math.max(1, zoom));
  const [wide, high] = inView(made);
  view.x = Math.min(width - wide, Math.max(0, x));
  view.y = Math.min(height - high, Math.max(0, y));
  for (const each of panels) {
    if (each.view !== view) continue;
    each.canvas.classList.toggle("zoomed", view.zoom > 1);
    redraw(each);
  }
}

// Zooms so that the cell at this share of the canvas stays where it is.
function zoomAt(made, factor, across = .5, down = .5) {
  const { view } = made, [wide, high] = inView(made);
  const x = view.x + across * wide, y = view.y + down * high;
  view.zoom = Math.min(mostZoom(made), Math.max(1, view.zoom * factor));
  const [now, deep] = inView(made);
  look(made, x - across * now, y - down * deep, view.zoom);
}
export function zoomAll(factor) {
  for (const tier of views.keys()) {
    const made = panels.find(({ panel }) => panel.tier === tier);
    if (made && factor) zoomAt(made, factor);
    else if (made) look(made, 0, 0, 1);
  }
}

function turnedWheel(made, event) {
  // Without a key the page scrolls. A pinch on a touchpad comes with Ctrl.
  if (!event.ctrlKey && !event.metaKey) return;
  event.preventDefault();
  zoomAt(made, ZOOM_STEP ** (-event.deltaY / 100), ...within(made, event));
}

// --- pointing ---------------------------------------------------------------------------------------------------

function within({ canvas }, event) {
  const box = canvas.getBoundingClientRect();
  return [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height];
}
function placeAt(made, event) {
  const [across, down] = within(made, event), { view, width, height } = made, [wide, high] = inView(made);
  const x = Math.min(width - 1, Math.max(0, Math.floor(view.x + across * wide)));
  const y = Math.min(height - 1, Math.max(0, Math.floor(view.y + down * high)));
  return near(made, x, y);
}
// What is drawn larger than it is can be hit where it is drawn.
function near(made, x, y) {
  const exact = placeOf(made, x, y), { canvas, width, height } = made, [across, down] = inView(made);
  const reach = (size, shown) => Math.ceil((LEAST_MARK / 2) / (size / shown));
  const [wide, high] = [reach(canvas.width, across), reach(canvas.height, down)];
  if (made.marked.has(exact) || wide + high <= 2 || !made.marked.size) return exact;
  for (let j = -high; j <= high; j++) {
    for (let i = -wide; i <= wide; i++) {
      if (x + i < 0 || x + i >= width || y + j < 0 || y + j >= height) continue;
      const place = placeOf(made, x + i, y + j);
      if (made.marked.has(place)) return place;
    }
  }
  return exact;
}

function pointed(made, event) {
  const { drag, view, canvas } = made;
  if (drag && event.buttons & 1) {
    const [x, y] = [event.clientX - drag.x, event.clientY - drag.y];
    if (view.zoom === 1 || !drag.moved && Math.hypot(x, y) < DRAGS) return;
    if (!drag.moved) canvas.setPointerCapture(event.pointerId);
    const box = canvas.getBoundingClientRect(), [wide, high] = inView(made);
    $("tip").hidden = true;
    made.drag = { x: event.clientX, y: event.clientY, moved: true };
    look(made, view.x - x / box.width * wide, view.y - y / box.height * high, view.zoom);
    return;
  }
  tip(made, placeAt(made, event), event);
}

let wanted = -1;
async function tip(made, place, { clientX, clientY }) {
  const number = made.panel.first + place, output = $("tip");
  wanted = number;
  let name = null;
  try { name = cells[number] === 255 ? null : await nameOf(number); } catch { /* the stream tells that the controller is gone */ }
  if (wanted !== number) return;
  output.hidden = !name;
  if (!name) return;
  output.textContent = `${name}: ${describe(cells[number])}`;
  output.style.left = `${Math.min(clientX + 12, innerWidth - output.offsetWidth - 8)}px`;
  output.style.top = `${Math.min(clientY + 14, innerHeight - 40)}px`;
}

async function open(made, place) {
  made.at = place;
  const name = await nameOf(made.panel.first + place);
  if (name) show(name);
}

async function announce(made) {
  const number = made.panel.first + made.at, name = await nameOf(number);
  if (!name || document.activeElement !== made.canvas) return;
  made.canvas.setAttribute("aria-label", `${name}: ${describe(cells[number])}`);
  const box = made.canvas.getBoundingClientRect();
  tip(made, made.at, { clientX: box.left, clientY: box.bottom });
}

function pressed(made, event) {
  const { panel, turned, view } = made;
  const across = turned ? panel.columns : 1, down = turned ? 1 : panel.columns;
  const step = { ArrowRight: across, ArrowLeft: -across, ArrowDown: down, ArrowUp: -down }[event.key];
  if (event.key === "Enter") open(made, made.at);
  else if (event.key === "+" || event.key === "-") zoomAt(made, event.key === "+" ? ZOOM_STEP : 1 / ZOOM_STEP);
  else if (event.key === "0") look(made, 0, 0, 1);
  else if (step) {
    const next = made.at + step;
    if (next >= 0 && next < panel.rows * panel.columns) made.at = next;
    // The view follows.
    const [x, y] = xyOf(made, made.at), [wide, high] = inView(made);
    const follow = (from, span, at) => Math.min(Math.max(from, at + 1 - span), at);
    look(made, follow(view.x, wide, x), follow(view.y, high, y), view.zoom);
  } else return;
  event.preventDefault();
  redraw(made);
  announce(made);
}
