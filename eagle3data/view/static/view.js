// All of the page's own JavaScript: charts, looking again, and what the pointer is on.
// Pages are whole without it; text is only ever put in as text.
"use strict";

const TONES = ["--mark", "--good", "--open", "--bad", "--quiet"];
const drawn = new Map();

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function number(value) {
  if (typeof value !== "number") return value;
  if (Number.isInteger(value)) return value.toLocaleString("en");
  return Number(value.toPrecision(3)).toString();
}

function axis(title, shown) {
  return {
    title: { display: Boolean(title), text: title, color: colour("--quiet") },
    ticks: { color: colour("--quiet"), maxRotation: 0, autoSkipPadding: 18, ...shown },
    grid: { color: colour("--line") },
    border: { color: colour("--line") },
  };
}

function configuration(spec) {
  const text = spec.share ? (value) => `${Math.round(value * 1000) / 10} %` : number;
  const datasets = spec.series.map((series, at) => ({
    label: series.name,
    data: series.y,
    borderColor: colour(TONES[at % TONES.length]),
    backgroundColor: colour(TONES[at % TONES.length]) + (spec.kind === "bar" ? "cc" : "22"),
    borderWidth: spec.kind === "bar" ? 0 : 1.8,
    borderRadius: 3,
    pointRadius: series.y.length < 3 ? 3 : 0,
    pointHitRadius: 12,
    categoryPercentage: 0.94,
    barPercentage: 0.94,
    tension: 0,
  }));
  const y = axis(spec.y_title, { callback: text, maxTicksLimit: 6 });
  if (spec.log) y.type = "logarithmic";
  else y.beginAtZero = true;
  return {
    type: spec.kind,
    data: { labels: spec.x.map((name) => number(name)), datasets },
    options: {
      animation: false,
      maintainAspectRatio: false,
      interaction: { mode: "index", intersect: false },
      plugins: {
        legend: {
          display: datasets.length > 1,
          labels: { color: colour("--ink"), boxWidth: 10, boxHeight: 10, usePointStyle: true },
        },
        tooltip: { callbacks: { label: (on) => `${on.dataset.label}: ${text(on.parsed.y)}` } },
      },
      scales: { x: { ...axis(spec.x_title), grid: { display: false } }, y },
    },
  };
}

function draw(root) {
  for (const canvas of root.querySelectorAll("canvas[data-chart]")) {
    drawn.get(canvas)?.destroy();
    drawn.set(canvas, new Chart(canvas, configuration(JSON.parse(canvas.dataset.chart))));
  }
}

function forgetRemoved() {
  for (const [canvas, chart] of drawn) {
    if (canvas.isConnected) continue;
    chart.destroy();
    drawn.delete(canvas);
  }
}

function drawAll() {
  Chart.defaults.font.family = getComputedStyle(document.body).fontFamily;
  draw(document);
}

drawAll();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);

for (const sorry of document.querySelectorAll("[data-again]")) {
  setTimeout(() => location.reload(), 1000 * Number(sorry.dataset.again));
}

const map = document.querySelector("#map");
if (map) {
  const said = document.querySelector("#said");
  const say = (event) => {
    const cell = event.target.closest(".cell");
    if (cell) said.textContent = cell.getAttribute("aria-label");
  };
  map.addEventListener("pointerover", say);
  map.addEventListener("focusin", say);
}
