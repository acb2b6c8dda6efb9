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

// One sample: a panel for the token that is pointed at, and what the target's head says of it.
const tokens = document.querySelector("#tokens");
if (tokens) showTokens(tokens, document.querySelector("#panel"), JSON.parse(tokens.dataset.rows));

function showTokens(all, panel, rows) {
  const spans = [...all.children];
  const places = new Map(spans.map((span, at) => [span, at]));
  let here = -1;
  let foretold = null;

  function entry(list, name, value, more) {
    const term = document.createElement("dt");
    const said = document.createElement("dd");
    term.textContent = name;
    said.textContent = value;
    if (more) {
      const quiet = document.createElement("span");
      quiet.className = "quiet";
      quiet.textContent = ` ${more}`;
      said.append(quiet);
    }
    list.append(term, said);
  }

  function paragraph(className, text) {
    const made = document.createElement("p");
    made.className = className;
    made.textContent = text;
    return made;
  }

  function show(at) {
    if (at < 0 || at >= spans.length) return;
    if (here >= 0) spans[here].classList.remove("here");
    here = at;
    spans[at].classList.add("here");
    const place = rows.first + at;
    const heading = document.createElement("h3");
    heading.textContent = visible(spans[at].textContent);
    const list = document.createElement("dl");
    entry(list, "position", number(place));
    entry(list, "token id", String(rows.ids[at]));
    entry(list, "carries loss", spans[at].classList.contains("k") ? "yes" : "no");
    for (const [layer, norms] of Object.entries(rows.norms)) {
      const factor = norms[at] / rows.medians[layer];
      entry(list, `norm, layer ${layer}`, number(norms[at]), Number.isFinite(factor) ? `× ${number(factor)}` : "");
    }
    panel.replaceChildren(heading, list);
    const next = foretold?.[at];
    if (next) {
      const said = document.createElement("dl");
      entry(said, "the head says", visible(next.text), percent(next.share));
      entry(said, "next is", visible(next.real_text), percent(next.real_share));
      entry(said, "its rank", number(next.rank));
      panel.append(document.createElement("hr"), said);
    }
    if (rows.odd[place]) panel.append(paragraph("why", rows.odd[place]));
  }

  all.addEventListener("pointerover", (event) => show(places.get(event.target) ?? -1));
  all.addEventListener("click", (event) => show(places.get(event.target) ?? -1));
  all.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    show(Math.min(Math.max(here + step, 0), spans.length - 1));
    spans[here].scrollIntoView({ block: "nearest" });
  });

  const said = document.querySelector("#head-said");
  if (!said) return;
  ask(said.dataset.head).then((answer) => {
    if (!answer.rows) {
      said.textContent = answer.said;
      return;
    }
    foretold = answer.rows;
    const known = foretold.filter(Boolean);
    const right = known.filter((row) => row.rank === 1).length;
    said.textContent = `The head names the next token in ${percent(right / Math.max(known.length, 1))} of ${number(known.length)} rows.`;
    // A token is coloured by how likely it was, which the row before it says.
    foretold.forEach((row, at) => {
      if (row && spans[at + 1]) spans[at + 1].classList.add(likelihood(row.real_share));
    });
    document.querySelector(".modes").hidden = false;
    if (here >= 0) show(here);
  });
  for (const button of document.querySelectorAll(".modes button")) {
    button.addEventListener("click", () => {
      all.classList.toggle("likely", button.dataset.mode === "likely");
      for (const other of document.querySelectorAll(".modes button")) {
        other.setAttribute("aria-pressed", String(other === button));
      }
    });
  }
}

function likelihood(share) {
  return ["p0", "p1", "p2", "p3", "p4"][[0.01, 0.1, 0.3, 0.7].filter((limit) => share >= limit).length];
}

function percent(share) {
  return share > 0 && share < 0.001 ? "< 0.1 %" : `${Math.round(share * 1000) / 10} %`;
}

function visible(text) {
  return text === "" ? "part of a character" : text.replaceAll("\n", "↵").replaceAll(" ", "␣");
}

async function ask(address) {
  const answer = await fetch(address);
  if (!answer.ok) return { said: "The head could not be asked; the page's text is as it was." };
  return answer.json();
}

// Parts of a page that change are asked for again; the server renders and escapes them.
for (const part of document.querySelectorAll("[data-part]")) keepLooking(part);

function keepLooking(part) {
  const wait = part.querySelector("[data-again-in]")?.dataset.againIn;
  if (wait) setTimeout(() => look(part), 1000 * Number(wait));
}

async function look(part) {
  try {
    const answer = await fetch(part.dataset.part);
    const text = await answer.text();
    if (answer.ok) {
      part.innerHTML = text;
      forgetRemoved();
      draw(part);
    } else {
      location.reload();
    }
  } catch {
    part.classList.add("part-lost");
    part.title = "The server does not answer: this is what it said last.";
    setTimeout(() => look(part), 5000);
    return;
  }
  part.classList.remove("part-lost");
  part.removeAttribute("title");
  keepLooking(part);
}
