"use strict";

// Tables: a click on a header sorts by its column, a second one turns the order round; empty cells stay last.
for (const button of document.querySelectorAll("thead button")) {
  button.addEventListener("click", () => {
    const header = button.closest("th");
    const body = header.closest("table").tBodies[0];
    const first = header.classList.contains("number") ? "descending" : "ascending";
    const second = first === "descending" ? "ascending" : "descending";
    const order = header.getAttribute("aria-sort") === first ? second : first;
    for (const other of header.parentElement.children) other.setAttribute("aria-sort", "none");
    header.setAttribute("aria-sort", order);
    const turned = order === "ascending" ? 1 : -1;
    const sorted = [...body.rows].map((row) => [row, row.cells[header.cellIndex].dataset.value]);
    sorted.sort(([, one], [, other]) => {
      if (one === "" || other === "") return (one === "") - (other === "");
      const numbers = [Number(one), Number(other)];
      const difference = numbers.some(Number.isNaN) ? one.localeCompare(other) : numbers[0] - numbers[1];
      return turned * difference;
    });
    body.append(...sorted.map(([row]) => row));
  });
}

// Curves.
const SVG = "http://www.w3.org/2000/svg";
const MARGIN = { left: 58, right: 12, top: 10, bottom: 42 };
const HEIGHT = 270;
const DASHES = { solid: "", dashed: "7 4", dotted: "2 3" };

function element(name, attributes, parent, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  parent?.append(made);
  return made;
}

function shown(value) {
  if (value === null) return "";
  const size = Math.abs(value);
  if (value !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(2).replaceAll("-", "\u2212");
  const text = size >= 1000 ? value.toLocaleString("en", { maximumFractionDigits: 1 }) : String(Number(value.toPrecision(5)));
  return text.replace("-", "\u2212");
}

function mark(value) {
  const rounded = Number(value.toPrecision(3));
  return rounded !== 0 && Math.abs(rounded) < 1e-3 ? rounded.toExponential().replaceAll("-", "\u2212") : shown(rounded);
}

function ticks(from, to, wanted) {
  const rough = (to - from) / wanted;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
  const found = [];
  for (let place = Math.ceil(from / step); place * step <= to * (1 + 1e-12); place += 1) found.push(place * step);
  return found;
}

function decades(from, to) {
  const [first, last] = [Math.floor(Math.log10(from)), Math.ceil(Math.log10(to))];
  const step = Math.ceil((last - first + 1) / 7);
  const among = (factors) => {
    const found = [];
    for (let power = first; power <= last; power += step) found.push(...factors.map((factor) => Number(`${factor}e${power}`)));
    return found.filter((value) => from <= value && value <= to);
  };
  return [[1], [1, 3], [1, 2, 5], [1, 2, 3, 4, 5, 6, 7, 8, 9]].map(among).find((found) => found.length > 2) ?? ticks(from, to, 4);
}

function extent(values) {
  let [least, most] = [Infinity, -Infinity];
  for (const value of values) if (value !== null) [least, most] = [Math.min(least, value), Math.max(most, value)];
  return [least, most];
}

class Chart {
  constructor(place) {
    this.place = place;
    this.data = JSON.parse(place.querySelector("script").textContent);
    this.hidden = new Set();
    this.at = null;
    this.legend();
    this.svg = element("svg", { role: "img", tabindex: 0, "aria-label": place.dataset.label }, place);
    this.tip = document.createElement("div");
    this.tip.className = "tip";
    this.tip.hidden = true;
    this.tip.setAttribute("aria-live", "polite");
    place.append(this.tip);
    this.xs = [...new Set(this.data.lines.flatMap((line) => line.x))].sort((one, other) => one - other);
    this.svg.addEventListener("pointermove", (event) => this.point(this.nearest(event)));
    this.svg.addEventListener("pointerdown", (event) => this.point(this.nearest(event)));
    this.svg.addEventListener("pointerleave", () => this.point(null));
    this.svg.addEventListener("blur", () => this.point(null));
    this.svg.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.draw()).observe(place);
  }

  legend() {
    const list = document.createElement("ul");
    list.className = "legend";
    for (const line of this.data.lines) {
      const button = document.createElement("button");
      button.type = "button";
      button.setAttribute("aria-pressed", "true");
      const sample = element("svg", { viewBox: "0 0 26 10", "aria-hidden": "true", style: `--own: ${line.colour}` }, button);
      element("line", { x1: 0, x2: 26, y1: 5, y2: 5, "stroke-dasharray": DASHES[line.dash] }, sample);
      button.append(line.name);
      button.addEventListener("click", () => {
        this.hidden.has(line) ? this.hidden.delete(line) : this.hidden.add(line);
        button.setAttribute("aria-pressed", String(!this.hidden.has(line)));
        this.draw();
      });
      const item = document.createElement("li");
      item.append(button);
      list.append(item);
    }
    this.place.append(list);
  }

  lines() {
    return this.data.lines.filter((line) => !this.hidden.has(line));
  }

  draw() {
    const width = this.place.clientWidth;
    if (width === 0) return;
    this.svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    this.svg.style.height = `${HEIGHT}px`;
    this.svg.replaceChildren();
    this.scales(width);
    this.axes(width);
    const clip = `clip-${this.place.id}`;
    const path = element("clipPath", { id: clip }, this.svg);
    const inner = { width: width - MARGIN.left - MARGIN.right, height: HEIGHT - MARGIN.top - MARGIN.bottom };
    element("rect", { x: MARGIN.left, y: MARGIN.top, ...inner }, path);
    const drawn = element("g", { "clip-path": `url(#${clip})` }, this.svg);
    for (const line of this.lines()) {
      const style = `--own: ${line.colour}`;
      if (line.low) element("path", { class: "band", style, d: this.band(line) }, drawn);
      element("path", { class: "line", style, d: this.trace(line.x, line.y), "stroke-dasharray": DASHES[line.dash] }, drawn);
    }
    this.marks = element("g", {}, this.svg);
    this.point(this.at);
  }

  scales(width) {
    const { log, from } = this.data.y;
    const [left, right] = extent(this.xs);
    this.x = (value) => MARGIN.left + ((value - left) / (right - left || 1)) * (width - MARGIN.left - MARGIN.right);
    let [low, high] = extent(this.lines().flatMap((line) => [...line.y, ...(line.low ?? []), ...(line.high ?? [])]));
    if (low > high) [low, high] = log ? [0.1, 1] : [0, 1];
    if (log) {
      low = Math.max(low, Math.min(from ?? low, high / 10));
      [low, high] = low < high ? [low / 1.2, high * 1.2] : [low / 2, high * 2];
    } else {
      const room = 0.04 * (high - low) || Math.abs(high) * 0.01 || 1;
      [low, high] = [low - room, high + room];
    }
    this.range = [low, high];
    const along = log ? Math.log : (value) => value;
    const [bottom, top] = [HEIGHT - MARGIN.bottom, MARGIN.top];
    // A value too small for the axis lies below it, where the clip hides it.
    this.y = (value) => bottom - ((along(Math.max(value, log ? low / 1e3 : -Infinity)) - along(low)) / (along(high) - along(low))) * (bottom - top);
  }

  axes(width) {
    const group = element("g", { "aria-hidden": "true" }, this.svg);
    const [bottom, right] = [HEIGHT - MARGIN.bottom, width - MARGIN.right];
    for (const value of this.data.y.log ? decades(...this.range) : ticks(...this.range, 5)) {
      const y = this.y(value);
      element("line", { class: "axis", x1: MARGIN.left, x2: right, y1: y, y2: y }, group);
      element("text", { x: MARGIN.left - 6, y: y + 4, "text-anchor": "end" }, group, mark(value));
    }
    for (const value of ticks(...extent(this.xs), width < 500 ? 3 : 5)) {
      element("line", { class: "axis", x1: this.x(value), x2: this.x(value), y1: bottom, y2: bottom + 4 }, group);
      element("text", { x: this.x(value), y: bottom + 18, "text-anchor": "middle" }, group, value.toLocaleString("en"));
    }
    element("text", { x: right, y: HEIGHT - 6, "text-anchor": "end" }, group, this.data.x.label);
  }

  trace(xs, ys) {
    let path = "";
    let pen = "M";
    xs.forEach((x, place) => {
      if (ys[place] === null) pen = "M";
      else {
        path += `${pen}${this.x(x).toFixed(1)},${this.y(ys[place]).toFixed(1)}`;
        pen = "L";
      }
    });
    return path;
  }

  band(line) {
    const known = line.x.map((_, place) => place).filter((place) => line.low[place] !== null && line.high[place] !== null);
    const corner = (values) => (place) => `${this.x(line.x[place]).toFixed(1)},${this.y(values[place]).toFixed(1)}`;
    return known.length ? `M${[...known.map(corner(line.high)), ...known.reverse().map(corner(line.low))].join("L")}Z` : "";
  }

  nearest(event) {
    const at = event.clientX - this.svg.getBoundingClientRect().left;
    let best = 0;
    this.xs.forEach((x, place) => {
      if (Math.abs(this.x(x) - at) < Math.abs(this.x(this.xs[best]) - at)) best = place;
    });
    return best;
  }

  key(event) {
    const last = this.xs.length - 1;
    const moves = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -Infinity, End: Infinity };
    if (event.key === "Escape") this.point(null);
    if (!(event.key in moves)) return;
    event.preventDefault();
    this.point(Math.max(0, Math.min(last, (this.at ?? (moves[event.key] > 0 ? -1 : last + 1)) + moves[event.key])));
  }

  point(at) {
    this.at = at;
    this.marks.replaceChildren();
    this.tip.hidden = at === null;
    if (at === null) return;
    const x = this.xs[at];
    element("line", { class: "cursor", x1: this.x(x), x2: this.x(x), y1: MARGIN.top, y2: HEIGHT - MARGIN.bottom }, this.marks);
    const head = document.createElement("div");
    head.textContent = `${this.data.x.label} ${x.toLocaleString("en")}`;
    const table = document.createElement("table");
    for (const line of this.lines()) {
      const value = line.y[line.x.indexOf(x)] ?? null;
      if (value === null) continue;
      const style = `--own: ${line.colour}`;
      if (this.y(value) <= HEIGHT - MARGIN.bottom) element("circle", { class: "dot", style, cx: this.x(x), cy: this.y(value), r: 3.5 }, this.marks);
      const row = table.insertRow();
      row.insertCell().textContent = line.name;
      row.insertCell().textContent = shown(value);
    }
    this.tip.replaceChildren(head, table);
    const room = this.place.clientWidth - this.tip.offsetWidth;
    const beside = this.x(x) + 12 > room ? this.x(x) - this.tip.offsetWidth - 12 : this.x(x) + 12;
    this.tip.style.left = `${Math.max(0, Math.min(room, beside))}px`;
    this.tip.style.top = `${this.svg.getBoundingClientRect().bottom - this.place.getBoundingClientRect().top + 2}px`;
  }
}

for (const place of document.querySelectorAll(".chart")) new Chart(place);
