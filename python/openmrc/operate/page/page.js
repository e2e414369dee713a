// The operator's page: reads the controller's API, follows its events, and draws. No libraries, no other site.
// Text from the controller goes into the page as text only, never as markup.

import { $, API, ask, clock, duration, element, json, rate } from "./tools.js";
import { readJobs } from "./jobs.js";
import { STATES, buildPanels, changeCells, readColours, setCells, zoomAll } from "./map.js";

let fabric = null;
let shown = null;
let shownNumber = -1;
let token = sessionStorage.getItem("openmrc-token") || "";
let operator = false;
let status = null;

// --- small things ---------------------------------------------------------------------------------------------

function trouble(text) {
  $("trouble").textContent = text || "";
  $("trouble").hidden = !text;
}

function nameButton(name) {
  return element("button", name, { class: "name", type: "button", onclick: () => show(name) });
}

// --- lists ----------------------------------------------------------------------------------------------------

async function readStatus() {
  status = await json("status");
  $("fabric").textContent = status.fabric;
  document.title = `${status.faults ? `(${status.faults}) ` : ""}${status.fabric} - openmrc`;
  $("simulated").hidden = !status.simulated;
  const links = status.links;
  const figures = [
    [status.faults, status.faults === 1 ? "fault" : "faults"], [links.good, "links good"], [links.broken + links.lossy, "bad"],
    [status.decisions.denied + status.decisions.drained, "out"],
    [`${status.hosts_heard}/${status.hosts}`, "hosts heard"],
  ];
  $("figures").replaceChildren(...figures.map(([figure, what]) => element("li", "", {}, element("b", String(figure)), ` ${what}`)));
  trouble(status.store_error && `Nothing can be stored, and nothing changed: ${status.store_error}`);
  $("login").textContent = status.read_only ? "read-only" : operator ? "Operator ✓" : "Operator";
  $("login").disabled = status.read_only;
  $("drains-part").hidden = !status.drains.length;
  $("drains").replaceChildren(...status.drains.map((drain) => element("li", "", {},
    nameButton(drain.what), ` ${drain.state}`,
    element("div", `${drain.who}: ${drain.why}${drain.users.length ? `; used by ${drain.users.join(", ")}` : ""}`, { class: "soft" }))));
}

async function readFaults() {
  const faults = await json("faults");
  const now = Date.now() / 1000;
  const items = faults.map((fault) => {
    const unknown = fault.kind === "unknown";
    const first = element("div", "", {}, element("span", unknown ? "one of " : `${fault.kind} `, { class: "kind broken" }));
    const names = unknown ? fault.suspects.slice(0, 6).map((suspect) => suspect.name) : [fault.name];
    names.forEach((name, i) => first.append(i ? ", " : "", nameButton(name)));
    const facts = `${(fault.loss * 100).toPrecision(3)} % lost, confidence ${fault.confidence.toFixed(2)}, ` +
      `costs ${rate(fault.cost_bps)}, for ${duration(now - fault.since)}`;
    return element("li", "", {}, first, element("div", facts, { class: "soft" }));
  });
  $("faults").replaceChildren(...(items.length ? items : [element("li", "none", { class: "soft" })]));
}

async function readLog() {
  const decisions = (await json("decisions")).slice(0, 30);
  const items = decisions.map((each) => element("li", "", {},
    element("span", `${clock(each.time)}  ${each.who} `, { class: "soft" }),
    element("b", each.action), " ", nameButton(each.what), " ",
    element("span", each.done ? "" : each.dry_run && !each.reason ? "(dry run)" : `not done: ${each.reason}`, { class: each.done ? "" : "soft" }),
    element("div", each.why, { class: "soft" })));
  $("log").replaceChildren(...(items.length ? items : [element("li", "none", { class: "soft" })]));
}

// --- a link ---------------------------------------------------------------------------------------------------

async function show(name) {
  const isSwitch = /^p\d+\/t\d+-\d+$/.test(name);
  shown = name;
  shownNumber = -1;
  $("wanted").value = name;
  if (isSwitch) { showSwitch(name); return; }
  try {
    const link = await json(`link?name=${encodeURIComponent(name)}`);
    if (shown !== name) return;
    shown = link.name;
    shownNumber = link.number;
    const out = link.decision !== "none";
    const facts = [["ends", `${link.lower}, ${link.upper}`], ["state", link.evidence]];
    if (out) facts.push(["decision", `${link.decision}${link.denied_by ? ` by ${link.denied_by}: ${link.denied_why}` : ""}`]);
    if (link.path_changes) facts.push(["paths", `condemned or taken back ${link.path_changes.toLocaleString("en")} times`]);
    $("link").replaceChildren(
      element("b", link.name),
      element("dl", "", {}, ...facts.flatMap(([what, value]) => [element("dt", what), element("dd", value)])),
      element("div", "", { class: "actions" },
        action("deny", link.name, link.decision === "denied"), action("allow", link.name, link.decision !== "denied"),
        action("drain", link.name, link.decision === "drained"), action("undrain", link.name, link.decision !== "drained")),
      timeline(link.history),
      element("ol", "", { class: "history" }, ...link.history.map((change) => element("li", "", {},
        element("span", `${clock(change.time)}  `, { class: "soft" }),
        change.evidence + (change.decision !== "none" ? `, ${change.decision}` : ""),
        element("div", change.detail, { class: "soft" })))));
  } catch (error) {
    $("link").replaceChildren(element("p", error.message, { class: "broken" }));
  }
}

function showSwitch(name) {
  const drained = status && status.drains.some((drain) => drain.what === name);
  $("link").replaceChildren(element("b", name), element("p", drained ? "taken out" : "a switch", { class: "soft" }),
    element("div", "", { class: "actions" }, action("drain", name, drained), action("undrain", name, !drained)));
}

function timeline(history) {
  const bar = element("div", "", { class: "timeline", role: "img", "aria-label": "states over time" });
  const now = Date.now() / 1000, changes = [...history].reverse();
  const start = changes.length ? changes[0].time : now;
  changes.forEach((change, i) => {
    const end = i + 1 < changes.length ? changes[i + 1].time : now;
    const state = change.decision !== "none" && ["unknown", "good", "suspect"].includes(change.evidence) ? change.decision : change.evidence;
    const part = element("i", "", { class: `state-${state}`, title: `${clock(change.time)} ${state}` });
    part.style.flexGrow = String(Math.max(end - change.time, (now - start) / 200, 0.001));
    bar.append(part);
  });
  const caption = changes.length ? `from ${clock(start)} to now` : "nothing has changed yet";
  return element("div", "", {}, bar, element("div", caption, { class: "caption" }));
}

function action(what, name, disabled) {
  return element("button", what, { type: "button", disabled: disabled || Boolean(status && status.read_only), onclick: () => confirmAction(what, name) });
}

// --- actions --------------------------------------------------------------------------------------------------

let wantedAction = null;

function confirmAction(what, name) {
  if (!operator) { wantedAction = [what, name]; askToken(); return; }
  wantedAction = [what, name];
  $("confirm-title").textContent = `${what} ${name}?`;
  $("confirm-text").textContent = {
    deny: "Hosts stop using this link.", allow: "Hosts may use this link again.",
    drain: "Hosts stop using it; wait for \"empty\" before you touch it.", undrain: "Hosts may use it again.",
  }[what];
  $("answer").textContent = "";
  $("who").value ||= localStorage.getItem("openmrc-who") || "";
  $("force").checked = $("dry").checked = false;
  $("why").value = "";
  $("confirm").showModal();
  $("why").focus();
}

$("confirm-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const [what, name] = wantedAction;
  localStorage.setItem("openmrc-who", $("who").value);
  $("go").disabled = true;
  try {
    const outcome = await json("actions", {
      method: "POST",
      headers: { "Content-Type": "application/json", Authorization: `Bearer ${token}` },
      body: JSON.stringify({ action: what, what: name, why: $("why").value, who: $("who").value, dry_run: $("dry").checked, force: $("force").checked }),
    });
    if (outcome.done) $("confirm").close();
    else $("answer").textContent = outcome.reason ? `Not done: ${outcome.reason}` : `It would be done: ${outcome.links.length} links.`;
    await Promise.all([readStatus(), readLog()]);
    if (shown) await show(shown);
  } catch (error) {
    $("answer").textContent = error.message;
  } finally {
    $("go").disabled = false;
  }
});
$("cancel").addEventListener("click", () => $("confirm").close());

function askToken() {
  $("token-answer").textContent = "";
  $("token-box").showModal();
}
async function useToken(given) {
  const answer = await json("token", { headers: { Authorization: `Bearer ${given}` } });
  operator = answer.operator;
  token = operator ? given : "";
  if (operator) sessionStorage.setItem("openmrc-token", given);
  else sessionStorage.removeItem("openmrc-token");
  return operator;
}
$("login").addEventListener("click", () => { wantedAction = null; askToken(); });
$("token-cancel").addEventListener("click", () => $("token-box").close());
$("token-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  try {
    if (!await useToken($("token").value.trim())) { $("token-answer").textContent = "This is not the token."; return; }
    $("token").value = "";
    $("token-box").close();
    await readStatus();
    if (wantedAction) confirmAction(...wantedAction);
  } catch (error) {
    $("token-answer").textContent = error.message;
  }
});

$("find").addEventListener("submit", (event) => { event.preventDefault(); const name = $("wanted").value.trim(); if (name) show(name); });
document.addEventListener("keydown", (event) => {
  if (event.target.matches("input") || document.querySelector("dialog[open]") || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "/") { event.preventDefault(); $("wanted").focus(); $("wanted").select(); }
  else if (event.key === "?") $("keys").showModal();
  else if ((event.key === "d" || event.key === "a") && shown && status && !status.read_only) {
    event.preventDefault();
    confirmAction(event.key === "d" ? "deny" : "allow", shown);
  }
});

// --- live -----------------------------------------------------------------------------------------------------

// Deltas that come while the map is read may be newer than what is read: they are applied to it as well.
const reading = new Set();
async function readMap() {
  const deltas = [];
  reading.add(deltas);
  try {
    setCells(new Uint8Array(await (await ask("map")).arrayBuffer()));
    deltas.forEach(changeCells);
  } finally {
    reading.delete(deltas);
  }
}

async function readAll() {
  const known = await json("fabric");
  if (!fabric || fabric.name !== known.name || fabric.cells !== known.cells) {
    fabric = known;
    buildPanels(fabric, show);
  }
  await readMap();
  await Promise.all([readStatus(), readFaults(), readLog(), readJobs(show)]);
  if (shown) await show(shown);
}

const soon = new Map();
function later(what, call) {
  if (soon.has(what)) return;
  soon.set(what, setTimeout(async () => {
    soon.delete(what);
    try { await call(); } catch { /* the stream tells that the controller is gone */ }
  }, 150));
}

function follow() {
  const source = new EventSource(`${API}/events`);
  const live = $("live");
  source.onopen = () => {
    live.textContent = "live";
    live.className = "tag on";
    readAll().catch((error) => trouble(error.message));
  };
  source.onerror = () => {
    live.textContent = "no controller";
    live.className = "tag off";
    // A browser gives up after an answer that is no stream, such as "busy".
    if (source.readyState === EventSource.CLOSED) { source.close(); setTimeout(follow, 2000); }
  };
  source.addEventListener("map", (event) => {
    const delta = JSON.parse(event.data).cells;
    reading.forEach((deltas) => deltas.push(delta));
    if (changeCells(delta).includes(shownNumber)) later("link", () => show(shown));
    later("status", readStatus);
  });
  source.addEventListener("fault", () => { later("faults", readFaults); later("status", readStatus); });
  source.addEventListener("decision", () => { later("log", readLog); later("status", readStatus); });
  source.addEventListener("drain", () => later("status", readStatus));
  source.addEventListener("resync", () => later("all", readAll));
}

async function start() {
  readColours();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", readColours);
  for (const [id, factor] of [["closer", 2], ["farther", .5], ["whole", 0]]) $(id).addEventListener("click", () => zoomAll(factor));
  $("legend").replaceChildren(...STATES.map((state) => element("li", "", {}, element("i", "", { class: `state-${state}` }), state)));
  const given = /(?:^#|&)token=([^&]+)/.exec(location.hash);
  if (given) {
    token = decodeURIComponent(given[1]);
    history.replaceState(null, "", location.pathname);
  }
  if (token) { try { await useToken(token); } catch { /* it is asked again */ } }
  follow();
  setInterval(() => later("faults", readFaults), 5000);
  setInterval(() => later("status", readStatus), 5000);
  setInterval(() => { if (!document.hidden) later("jobs", () => readJobs(show)); }, 2000);
}
start();
