// The charts: a line for the median, a band for the range over seeds.
function isLog(panel) {
  return panel.override ?? Boolean(panel.log);
}

function visible(panel) {
  return panel.curves.filter((curve) => !state.hidden.has(curve.head));
}

function positives(panel) {
  return panel.curves.flatMap((curve) => curve.median.filter((value) => value > 0));
}

function bandOf(curve, x, floor) {
  // On a logarithmic axis, a band that reaches zero extends to the bottom; where it is zero throughout, there is none.
  const places = x.map((_, place) => place).filter((place) => floor === null || curve.high[place] > 0);
  const low = places.map((place) => (floor === null ? curve.low[place] : Math.max(curve.low[place], floor)));
  const fill = transparent(color(`head-${curve.head}`), 0.12);
  return {
    x: places.map((place) => x[place]).concat(places.map((place) => x[place]).reverse()),
    y: places.map((place) => curve.high[place]).concat(low.reverse()),
    type: "scatter", mode: "lines", line: { width: 0 }, fill: "toself", fillcolor: fill, hoverinfo: "skip", showlegend: false,
    meta: { head: curve.head, role: "band" },
  };
}

function lineOf(panel, curve, x, log) {
  const head = DATA.heads[curve.head];
  const seeds = (place) => (Array.isArray(curve.seeds) ? curve.seeds[place] : curve.seeds);
  const range = (place) => (curve.low ? ` (${shown(curve.low[place])} to ${shown(curve.high[place])})` : "");
  return {
    x, y: curve.median.map((value) => (log && !(value > 0) ? null : value)),
    type: "scatter", mode: "lines+markers", name: plain(head.name), connectgaps: false,
    line: { color: color(`head-${curve.head}`), dash: head.dash, width: 2 },
    marker: { symbol: head.marker, size: 7, maxdisplayed: 8, color: color(`head-${curve.head}`) },
    customdata: x.map((_, place) => `${range(place)}, ${seeds(place)} ${seeds(place) === 1 ? "seed" : "seeds"}`),
    hovertemplate: `${plain(head.name)} %{y:.4~g}%{customdata}<extra></extra>`,
    meta: { head: curve.head, role: "median" },
  };
}

function referenceOf(reference, from, to) {
  return {
    x: [from, to], y: [reference.value, reference.value], type: "scatter", mode: "lines", hoverinfo: "skip",
    line: { color: color("faint"), dash: "dot", width: 1.5 }, meta: { role: "reference" },
  };
}

function tracesOf(panel) {
  const log = isLog(panel);
  const floor = log ? Math.min(...positives(panel)) / 3 : null;
  const curves = visible(panel);
  const traces = curves.filter((curve) => curve.low).map((curve) => bandOf(curve, DATA.x[curve.x], floor));
  traces.push(...curves.map((curve) => lineOf(panel, curve, DATA.x[curve.x], log)));
  const ends = panel.curves.flatMap((curve) => [DATA.x[curve.x][0], DATA.x[curve.x].at(-1)]);
  const references = panel.references.filter((reference) => !log || reference.value > 0);
  return traces.concat(references.map((reference) => referenceOf(reference, Math.min(...ends), Math.max(...ends))));
}

// An axis from 0 would squeeze accuracies at its top, so it starts at the lowest value of the second half.
function rangeOf(panel) {
  if (!panel.percent || panel.horizontal !== "epoch" || isLog(panel)) return null;
  const curves = visible(panel), ends = curves.map((curve) => DATA.x[curve.x].at(-1));
  const late = (curve) => DATA.x[curve.x].map((x, place) => [x, place]).filter(([x]) => x >= Math.max(...ends) / 2).map(([, place]) => place);
  const values = curves.flatMap((curve) => late(curve).flatMap((place) =>
    [curve.low?.[place] ?? curve.median[place], curve.high?.[place] ?? curve.median[place]])).filter((value) => value !== null);
  const low = Math.min(...values), high = Math.max(...values), margin = 0.05 * (high - low);
  return high > low ? [low - margin, high + margin] : null;
}

function layoutOf(panel) {
  const axis = { gridcolor: color("grid"), linecolor: color("line"), zeroline: false, automargin: true, fixedrange: coarse };
  const logEpochs = state.logEpochs && panel.log !== null;
  const canLog = isLog(panel) && positives(panel).length > 0;
  const range = rangeOf(panel);
  return {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: color("ink"), size: 12, family: "system-ui, sans-serif" },
    margin: { l: 48, r: 12, t: 8, b: 40 }, showlegend: false, hovermode: "x unified", dragmode: coarse ? false : "zoom",
    hoverlabel: { bgcolor: color("raised"), bordercolor: color("line"), font: { color: color("ink"), size: 12 } },
    xaxis: { ...axis, title: { text: panel.horizontal, standoff: 6 }, type: logEpochs ? "log" : "linear" },
    yaxis: { ...axis, type: canLog ? "log" : "linear", exponentformat: "power", nticks: 6, ...(range && { range }) },
  };
}

const CONFIG = {
  // Plotly's own buttons are off: they cover the chart, and one of them uploads the data.
  responsive: true, displayModeBar: false, showTips: false, doubleClick: "reset",
};

function draw(panel) {
  const { figure } = panel;
  const button = figure.querySelector(".axis");
  if (button) button.setAttribute("aria-pressed", String(isLog(panel)));
  const zero = visible(panel).filter((curve) => isLog(panel) && !curve.median.some((value) => value > 0));
  const names = zero.map((curve) => DATA.heads[curve.head].name).join(", ");
  const range = rangeOf(panel);
  const below = range !== null && visible(panel).some((curve) => curve.median.some((value) => value !== null && value < range[0]));
  const note = names ? `0 throughout, so not on this axis: ${names}` : below ? `The axis starts at ${shown(range[0], 3)}; lines enter from below.` : "";
  figure.querySelector(".axis-note").textContent = note;
  Plotly.react(figure.querySelector(".plot"), tracesOf(panel), layoutOf(panel), CONFIG);
  panel.drawn = true;
}

// Draws one chart at a time, so that the page stays responsive, and only charts near the viewport.
const figures = new Map([...document.querySelectorAll("[data-panel]")].map((figure) => [figure.dataset.panel, figure]));
const panels = DATA.experiments.flatMap((experiment, number) =>
  experiment.panels.map((panel, place) => Object.assign(panel, { figure: figures.get(`${number}-${place}`), drawn: false })));
const near = new Set();
let drawing = 0;

function drawNear() {
  const turn = ++drawing;
  document.body.dataset.drawn = "";
  const next = () => {
    if (turn !== drawing) return;
    const panel = [...near].find((panel) => !panel.drawn);
    if (panel === undefined) { document.body.dataset.drawn = "all"; return; }
    draw(panel);
    setTimeout(next, 0);
  };
  next();
}

function drawAll() {
  for (const panel of panels) panel.drawn = false;
  drawNear();
}

const panelOf = new Map(panels.map((panel) => [panel.figure, panel]));
const observer = new IntersectionObserver((entries) => {
  for (const entry of entries) if (entry.isIntersecting) near.add(panelOf.get(entry.target)); else near.delete(panelOf.get(entry.target));
  drawNear();
}, { rootMargin: "100% 0px" });
for (const panel of panels) observer.observe(panel.figure);
