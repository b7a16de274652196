// The collapse as an animation: a few classes in three dimensions, rotated by hand and during playback, epoch by epoch.
// From this viewpoint, no corner of a tetrahedron hides another.
const view = { yaw: 0.75, pitch: -0.45 };

function unpack(animation) {
  const bytes = Uint8Array.from(atob(animation.points), (letter) => letter.charCodeAt(0));
  const whole = new DataView(bytes.buffer);
  const count = bytes.length / 2;
  const points = new Float32Array(count);
  for (let place = 0; place < count; place++) points[place] = whole.getInt16(2 * place, true) * animation.scale;
  return points;
}

function momentAt(animation, epoch) {
  let moment = 0;
  while (moment + 1 < animation.epochs.length && animation.epochs[moment + 1] <= epoch) moment++;
  return moment;
}

// Four colors and four shapes distinguish sixteen classes.
function shapeOf(label) {
  return (label + Math.floor(label / 4)) % 4;
}

// All pairs of a simplex; with more classes, pairs that are about as close to each other as to any class.
function edgesOf(animation, moment) {
  const count = animation.classes.length, start = 3 * moment * (2 * count + animation.labels.length), edges = [];
  const distance = (one, other) => Math.hypot(...[0, 1, 2].map((axis) =>
    animation.unpacked[start + 3 * one + axis] - animation.unpacked[start + 3 * other + axis]));
  const all = [...Array(count).keys()];
  const nearest = all.map((one) => Math.min(...all.filter((other) => other !== one).map((other) => distance(one, other))));
  for (const one of all) for (let other = 0; other < one; other++) {
    if (count <= 4 || distance(one, other) <= 1.2 * Math.max(nearest[one], nearest[other])) edges.push([one, other]);
  }
  return edges;
}

function mark(context, shape, x, y, size) {
  context.beginPath();
  if (shape === 0) context.arc(x, y, size, 0, 2 * Math.PI);
  else if (shape === 1) context.rect(x - size, y - size, 2 * size, 2 * size);
  else {
    const turns = shape === 2 ? [-90, 30, 150] : [-90, 0, 90, 180];
    turns.forEach((turn, place) => {
      const angle = (turn * Math.PI) / 180;
      const at = [x + 1.35 * size * Math.cos(angle), y + 1.35 * size * Math.sin(angle)];
      if (place === 0) context.moveTo(...at); else context.lineTo(...at);
    });
    context.closePath();
  }
}

function projector(animation, moment, canvas, reach, turned) {
  const each = 2 * animation.classes.length + animation.labels.length;
  const middle = canvas.width / 2, zoom = (0.46 * canvas.width) / reach;
  const yaw = view.yaw + turned;
  const [cy, sy, cp, sp] = [Math.cos(yaw), Math.sin(yaw), Math.cos(view.pitch), Math.sin(view.pitch)];
  return (place) => {
    const start = 3 * (moment * each + place);
    const [x, y, z] = animation.unpacked.subarray(start, start + 3);
    const across = cy * x + sy * z, away = -sy * x + cy * z;
    return [middle + zoom * across, middle - zoom * (cp * y - sp * away)];
  };
}

function paint(animation, moment, canvas, reach, turned) {
  const size = Math.round(canvas.clientWidth * (window.devicePixelRatio || 1));
  if (size > 0 && canvas.width !== size) canvas.width = canvas.height = size;
  const context = canvas.getContext("2d"), unit = canvas.width / 320, shownClasses = animation.classes.length;
  const at = projector(animation, moment, canvas, reach, turned), origin = [canvas.width / 2, canvas.width / 2];
  context.clearRect(0, 0, canvas.width, canvas.height);
  context.lineWidth = unit;
  context.strokeStyle = color("line");
  for (const [one, other] of edgesOf(animation, moment)) {
    context.beginPath(); context.moveTo(...at(one)); context.lineTo(...at(other)); context.stroke();
  }
  animation.labels.forEach((label, sample) => {
    context.fillStyle = transparent(color(`class-${label % 4}`), 0.55);
    mark(context, shapeOf(label), ...at(2 * shownClasses + sample), 2.4 * unit);
    context.fill();
  });
  for (let place = 0; place < shownClasses; place++) {
    const tip = at(place), tint = color(`class-${place % 4}`);
    const angle = Math.atan2(tip[1] - origin[1], tip[0] - origin[0]);
    context.strokeStyle = context.fillStyle = tint;
    context.lineWidth = 2 * unit;
    context.beginPath(); context.moveTo(...origin); context.lineTo(...tip);
    for (const side of [-0.45, 0.45]) {
      context.moveTo(...tip); context.lineTo(tip[0] - 9 * unit * Math.cos(angle + side), tip[1] - 9 * unit * Math.sin(angle + side));
    }
    context.stroke();
    mark(context, shapeOf(place), ...at(shownClasses + place), 6 * unit);
    context.fill();
    context.strokeStyle = color("ground"); context.lineWidth = 1.5 * unit; context.stroke();
    context.fillStyle = color("ink"); context.font = `${Math.max(12 * unit, 10 * (window.devicePixelRatio || 1))}px system-ui, sans-serif`; context.textAlign = "center";
    const away = 14 * unit;
    context.fillText(`class ${animation.classes[place]}`, tip[0] + away * Math.cos(angle), tip[1] + away * Math.sin(angle) + 4 * unit);
  }
}
