// The jobs: a line for each, and of one its goodput on every plane with the faults that concern it.

import { $, clock, duration, element, json, rate, size } from "./tools.js";

const SECONDS = 600, LEAST_SECONDS = 60;
const WIDTH = 600, HEIGHT = 150;
const SVG = "http://www.w3.org/2000/svg";
let chosen = null;

function drawn(tag, attributes, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

// A plane has the same colour in every picture; after sixteen they repeat.
const colour = (plane) => `var(--series-${plane % 16})`;

export async function readJobs(showLink) {
  const jobs = await json("jobs");
  const found = jobs.find((job) => job.job === chosen) || jobs[0];
  chosen = found ? found.job : null;
  const focused = document.activeElement && document.activeElement.dataset.job;
  $("jobs").replaceChildren(...(jobs.length ? jobs.map((job) => row(job, job === found, showLink))
    : [element("li", "none: processes name their job in OPENMRC_JOB", { class: "soft" })]));
  if (focused !== undefined) [...$("jobs").querySelectorAll("button")].find((each) => each.dataset.job === focused)?.focus();
  if (!found) { $("job").replaceChildren(); return; }
  const known = Math.max(LEAST_SECONDS, Date.now() / 1000 - found.since);
  const series = await json(`job?name=${encodeURIComponent(found.job)}&seconds=${Math.min(SECONDS, known).toFixed()}`);
  $("job").replaceChildren(chart(found, series), legend(found), ...costs(found, showLink));
}

const counted = (count, one, several = `${one}s`) => `${count} ${count === 1 ? one : several}`;

function row(job, current, showLink) {
  const button = element("button", job.job, { class: "name", type: "button", "data-job": job.job, "aria-pressed": String(current),
    onclick: () => { chosen = job.job; readJobs(showLink).catch(() => { /* the stream tells that the controller is gone */ }); } });
  const costly = job.costs.filter((cost) => cost.outcome === "cost").length;
  const facts = job.hosts ? `${counted(job.hosts, "host")}, ${counted(job.processes, "process", "processes")}, ${rate(job.goodput_bps)}` : `not heard for ${duration(job.heard_s)}`;
  return element("li", "", {}, button, element("span", ` ${facts}${costly ? `, ${counted(costly, "fault")} cost it goodput` : ""}`, { class: "soft" }));
}

// A line breaks where no agent has reported the job.
function pieces(values, x, y) {
  const found = [[]];
  values.forEach((value, i) => {
    if (value === null) { if (found.at(-1).length) found.push([]); }
    else found.at(-1).push(`${x(i).toFixed(1)},${y(value).toFixed(1)}`);
  });
  return found.filter((piece) => piece.length > 1);
}

function chart(job, series) {
  const steps = series.planes_bps[0].length, end = series.begin + steps * series.step_s;
  const most = Math.max(1, ...series.planes_bps.flat().filter((value) => value !== null)) * 1.05;
  const x = (step) => (step + .5) / steps * WIDTH, y = (value) => HEIGHT * (1 - value / most);
  const at = (time) => Math.min(WIDTH, Math.max(0, (time - series.begin) / (end - series.begin) * WIDTH));
  const told = job.planes_bps.map((value, plane) => `plane ${plane} ${rate(value)}`).join(", ");
  const made = drawn("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": `goodput of ${job.job}: ${told}` });
  for (const cost of job.costs) {
    const left = at(cost.since), right = at(cost.until ?? end);
    if (right <= 0 || left >= WIDTH) continue;
    const band = drawn("rect", { class: "band", x: left, y: 0, width: Math.max(2, right - left), height: HEIGHT }, drawn("title", {}, `${cost.kind} ${cost.name}`));
    made.append(band);
  }
  series.planes_bps.forEach((values, plane) => {
    for (const piece of pieces(values, x, y)) {
      const line = drawn("polyline", { points: piece.join(" ") });
      line.style.stroke = colour(plane);
      made.append(line);
    }
  });
  return element("figure", "", {},
    element("div", `${rate(most)} a plane`, { class: "caption" }), made,
    element("div", "", { class: "caption ends" }, element("span", clock(series.begin)), element("span", clock(end))));
}

function legend(job) {
  return element("ul", "", { class: "planes" }, ...job.planes_bps.map((value, plane) => {
    const swatch = element("i");
    swatch.style.background = colour(plane);
    return element("li", "", {}, swatch, `plane ${plane} ${rate(value)}`);
  }));
}

function costs(job, showLink) {
  if (!job.costs.length) return [element("p", "No named fault has concerned it since it was first heard.", { class: "soft" })];
  return [element("h3", "What faults cost it"), element("ol", "", { class: "costs" }, ...job.costs.map((cost) => element("li", "", {},
    element("span", `${clock(cost.since)}  ${cost.kind} `, { class: "soft" }),
    element("button", cost.name, { class: "name", type: "button", onclick: () => showLink(cost.name) }),
    element("span", cost.until === null ? ", still open" : `, for ${duration(cost.until - cost.since)}`, { class: "soft" }),
    element("div", outcome(cost), { class: cost.outcome === "cost" ? "" : "soft" }))))];
}

function outcome(cost) {
  const others = cost.together ? "; other faults at the same time" : "";
  if (cost.outcome === "unknown") return "too little goodput before or during it to compare";
  if (cost.outcome === "none") return `no difference beyond the job's own variation (${rate(cost.before_bps)} before)${others}`;
  return `${rate(cost.during_bps)} instead of ${rate(cost.before_bps)}, ${size(cost.lost_bytes)} less${others}`;
}
