// The controls of the page.
function reachOf(animations) {
  // Far enough to show the arrows and most samples; the same for all heads.
  const norms = [];
  for (const animation of animations) {
    const points = animation.unpacked;
    for (let place = 0; place < points.length; place += 3) norms.push(Math.hypot(points[place], points[place + 1], points[place + 2]));
  }
  norms.sort((a, b) => a - b);
  return Math.max(1.2, Math.min(norms[Math.floor(0.97 * (norms.length - 1))], 4));
}

function setUpAnimations(part) {
  const animations = DATA.experiments[Number(part.dataset.experiment)].animations;
  for (const animation of animations) animation.unpacked = unpack(animation);
  const reach = reachOf(animations);
  const epochs = [...new Set(animations.flatMap((animation) => animation.epochs))].sort((a, b) => a - b);
  const slider = part.querySelector(".epoch"), play = part.querySelector(".play"), output = part.querySelector("output");
  const stages = [...part.querySelectorAll(".stage")];
  slider.max = String(epochs.length - 1);
  const show = () => {
    const epoch = epochs[Number(slider.value)];
    output.textContent = `epoch ${epoch}`;
    slider.setAttribute("aria-valuetext", `epoch ${epoch}`);
    stages.forEach((stage, place) => {
      const animation = animations[place], moment = momentAt(animation, epoch), canvas = stage.querySelector("canvas");
      stage.hidden = state.hidden.has(animation.head);
      if (stage.hidden) return;
      // Rotates a little with each step, because motion parallax conveys depth.
      paint(animation, moment, canvas, reach, 0.05 * Number(slider.value));
      const says = `epoch ${animation.epochs[moment]}: samples ${shown(animation.spread[moment], 3)} from their class mean, ` +
        `cosine ${shown(animation.alignment[moment], 3)} of class means with the classifier`;
      stage.querySelector("figcaption").textContent =
        `spread ${shown(animation.spread[moment], 3)}, cosine ${shown(animation.alignment[moment], 3)}`;
      canvas.setAttribute("aria-label", `${DATA.heads[animation.head].name}, ${says}`);
    });
  };
  let timer = null;
  const stop = () => { clearInterval(timer); timer = null; play.textContent = "Play"; };
  const advance = () => {
    slider.value = String(Number(slider.value) + 1);
    show();
    if (Number(slider.value) >= epochs.length - 1) stop();
  };
  play.addEventListener("click", () => {
    if (timer !== null) { stop(); return; }
    if (Number(slider.value) >= epochs.length - 1) slider.value = "0";
    play.textContent = "Pause";
    show();
    timer = setInterval(advance, Math.min(400, Math.max(60, 8000 / epochs.length)));
  });
  slider.addEventListener("input", () => { stop(); show(); });
  for (const stage of stages) turnable(stage.querySelector("canvas"), () => showAnimations.forEach((paintAgain) => paintAgain()));
  return show;
}

function turnable(canvas, changed) {
  canvas.addEventListener("pointermove", (event) => {
    if (event.buttons === 0) return;
    view.yaw += event.movementX * 0.01;
    view.pitch += event.movementY * 0.01;
    changed();
  });
  canvas.addEventListener("keydown", (event) => {
    const turns = { ArrowLeft: [-0.1, 0], ArrowRight: [0.1, 0], ArrowUp: [0, -0.1], ArrowDown: [0, 0.1] }[event.key];
    if (!turns) return;
    event.preventDefault();
    view.yaw += turns[0];
    view.pitch += turns[1];
    changed();
  });
}

function redraw() {
  showAnimations.forEach((show) => show());
  drawAll();
}

for (const box of document.querySelectorAll(".head")) box.addEventListener("change", () => {
  if (box.checked) state.hidden.delete(Number(box.dataset.head)); else state.hidden.add(Number(box.dataset.head));
  redraw();
});
document.getElementById("log-epochs").addEventListener("change", (event) => { state.logEpochs = event.target.checked; redraw(); });
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
// A link into a closed section opens it.
const openTarget = () => document.getElementById(location.hash.slice(1))?.closest("details")?.setAttribute("open", "");
window.addEventListener("hashchange", openTarget);
openTarget();
window.addEventListener("resize", () => showAnimations.forEach((show) => show()));
const showAnimations = [...document.querySelectorAll(".animation")].map(setUpAnimations);
showAnimations.forEach((show) => show());
