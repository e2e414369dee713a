// What the parts of the page have in common: elements, requests, and figures as people read them.

export const API = "api/v1";
export const $ = (id) => document.getElementById(id);

export function element(tag, text, attributes = {}, ...children) {
  const made = document.createElement(tag);
  if (text) made.textContent = text;
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== false && value !== null) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children);
  return made;
}

export async function ask(path, options = {}) {
  const answer = await fetch(`${API}/${path}`, { cache: "no-store", ...options });
  if (!answer.ok) {
    let told = answer.statusText;
    try { told = (await answer.json()).detail || told; } catch { /* no JSON */ }
    throw new Error(typeof told === "string" ? told : JSON.stringify(told));
  }
  return answer;
}
export const json = async (path, options) => (await ask(path, options)).json();
export const clock = (seconds) => new Date(seconds * 1000).toLocaleTimeString();

export function rate(bits) {
  for (const [unit, size] of [["Tb/s", 1e12], ["Gb/s", 1e9], ["Mb/s", 1e6], ["kb/s", 1e3]]) {
    if (bits >= size) return `${+(bits / size).toPrecision(3)} ${unit}`;
  }
  return `${Math.round(bits)} b/s`;
}

export function duration(seconds) {
  if (seconds < 60) return `${Math.max(0, Math.round(seconds))} s`;
  if (seconds < 3600) return `${Math.round(seconds / 60)} min`;
  return `${(seconds / 3600).toFixed(1)} h`;
}

export function size(bytes) {
  for (const [unit, one] of [["TB", 1e12], ["GB", 1e9], ["MB", 1e6], ["kB", 1e3]]) {
    if (bytes >= one) return `${+(bytes / one).toPrecision(3)} ${unit}`;
  }
  return `${Math.round(bytes)} B`;
}
