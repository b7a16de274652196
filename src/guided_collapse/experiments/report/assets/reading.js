// Reads a chart with the keyboard: the arrow keys move from one measurement to the next.
function readAt(panel, x) {
  const parts = visible(panel).map((curve) => {
    const place = DATA.x[curve.x].indexOf(x);
    if (place < 0) return null;
    const range = curve.low ? ` (${shown(curve.low[place])} to ${shown(curve.high[place])})` : "";
    return `${DATA.heads[curve.head].name} ${shown(curve.median[place])}${range}`;
  });
  const where = panel.horizontal === "epoch" ? `epoch ${x}` : `${shown(x)} ${panel.horizontal}`;
  return `${where}: ${parts.filter((part) => part !== null).join("; ")}`;
}

function step(panel, key) {
  const all = [...new Set(visible(panel).flatMap((curve) => DATA.x[curve.x]))].sort((a, b) => a - b);
  if (all.length === 0) return;
  const far = Math.max(1, Math.round(all.length / 20));
  const steps = { ArrowRight: 1, ArrowLeft: -1, PageUp: -far, PageDown: far, Home: -all.length, End: all.length };
  const start = panel.cursor === undefined ? (key === "ArrowRight" ? -1 : all.length) : panel.cursor;
  panel.cursor = Math.min(all.length - 1, Math.max(0, start + steps[key]));
  const x = all[panel.cursor];
  const { figure } = panel;
  figure.querySelector(".readout").textContent = readAt(panel, x);
  const line = { type: "line", x0: x, x1: x, yref: "paper", y0: 0, y1: 1, line: { color: color("ink"), width: 1 } };
  Plotly.relayout(figure.querySelector(".plot"), { shapes: [line] });
}

for (const panel of panels) {
  const { figure } = panel;
  figure.querySelector(".plot").addEventListener("keydown", (event) => {
    if (!["ArrowRight", "ArrowLeft", "PageUp", "PageDown", "Home", "End"].includes(event.key)) return;
    event.preventDefault();
    step(panel, event.key);
  });
  figure.querySelector(".axis")?.addEventListener("click", () => {
    panel.override = !isLog(panel);
    draw(panel);
  });
}
