"use strict";
// Draws the charts when they come into view, and lets tables be sorted and filtered.

const page = JSON.parse(document.getElementById("data").textContent);
const dark = matchMedia("(prefers-color-scheme: dark)");
let over = document.querySelector("[data-over]")?.dataset.over;

function look(element) {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(`--${name}`).trim();
  const names = ["text", "soft", "line", "grid", "card", "shade", "good", "bad", "warn", "busy", "quiet"];
  const colours = Object.fromEntries(names.map((name) => [name, colour(name)]));
  for (const tone of ["good", "bad", "warn", "busy", "quiet"]) colours[`${tone}Fill`] = colour(`${tone}-fill`);
  colours.series = [1, 2, 3, 4, 5, 6, 7, 8].map((number) => colour(`c${number}`));
  return { colours, over, width: element.clientWidth, narrow: element.clientWidth < 560, font: getComputedStyle(document.body).fontFamily };
}

function draw(element) {
  const chart = page.charts[Number(element.dataset.chart)];
  const how = look(element);
  if (chart.what === "parallel" && how.narrow) element.style.height = `${Math.max(chart.data.axes.length * 100, 300)}px`;
  const drawn = echarts.getInstanceByDom(element) ?? echarts.init(element);
  drawn.resize();
  drawn.setOption(DRAWN_BY[chart.what](chart.data, page, how), true);
  if (chart.data.ramp && !element.nextElementSibling) element.after(ramp(chart.data));
}

function ramp(data) {
  const [least, most] = data.ramp;
  const [box, bar] = [document.createElement("div"), document.createElement("i")];
  box.className = "ramp";
  bar.style.background = `linear-gradient(90deg, ${RAMP.join(", ")})`;
  box.append(`${data.of ?? ""} ${exact(least)}`, bar, `${exact(most)} ${data.y}`);
  return box;
}

const elements = [...document.querySelectorAll("[data-chart]")];
const seen = new Set();
const redraw = () => seen.forEach(draw);

const viewed = new IntersectionObserver((entries) => {
  for (const { isIntersecting, target } of entries) {
    if (!isIntersecting || seen.has(target)) continue;
    seen.add(target);
    draw(target);
    resized.observe(target);
  }
}, { rootMargin: "400px" });
const widths = new Map();
const resized = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    if (widths.has(target) && widths.get(target) !== target.clientWidth) draw(target);
    widths.set(target, target.clientWidth);
  }
});
elements.forEach((element) => viewed.observe(element));
dark.addEventListener("change", redraw);
addEventListener("beforeprint", () => elements.forEach((element) => { seen.add(element); draw(element); }));

for (const button of document.querySelectorAll("[data-over]")) {
  button.addEventListener("click", () => {
    over = button.dataset.over;
    for (const other of document.querySelectorAll("[data-over]")) other.ariaPressed = String(other === button);
    redraw();
  });
}

function valueOf(cell) {
  const text = cell.dataset.value ?? cell.textContent;
  return cell.classList.contains("number") && text !== "" ? Number(text) : text;
}

function compare(one, other) {
  if (typeof one === "number" && typeof other === "number") return one - other;
  return String(one).localeCompare(String(other), "en", { numeric: true });
}

function sort(table, column, ascending) {
  const rows = [...table.tBodies[0].rows].map((row) => [valueOf(row.cells[column]), row]);
  rows.sort(([one], [other]) => {
    if (one === "" || other === "") return (one === "") - (other === ""); // the empty ones last, both ways
    return ascending ? compare(one, other) : compare(other, one);
  });
  table.tBodies[0].append(...rows.map(([, row]) => row));
}

for (const table of document.querySelectorAll("table")) {
  [...table.tHead.rows[0].cells].forEach((heading, column) => {
    heading.firstElementChild.addEventListener("click", () => {
      const ascending = heading.ariaSort !== "ascending";
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      heading.ariaSort = ascending ? "ascending" : "descending";
      sort(table, column, ascending);
    });
  });
}

for (const input of document.querySelectorAll(".filter")) {
  const rows = [...input.parentElement.querySelectorAll("tbody tr")];
  const textOf = (row) => [...row.cells].map((cell) => cell.textContent).join(" ").toLowerCase();
  input.addEventListener("input", () => {
    const words = input.value.toLowerCase().split(/\s+/);
    for (const row of rows) row.hidden = !words.every((word) => textOf(row).includes(word));
  });
}
