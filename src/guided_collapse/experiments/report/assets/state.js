"use strict";
// The state of the page: heads, axes and colors.
const DATA = JSON.parse(document.getElementById("data").textContent);
const state = { hidden: new Set(), logEpochs: false };
const coarse = window.matchMedia("(pointer: coarse)").matches;

function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

// Escapes names, because plotly interprets tags in text as markup.
function plain(text) {
  return text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
}

function shown(value, digits = 4) {
  return value === null ? "not known" : String(Number(value.toPrecision(digits)));
}

function transparent(hex, alpha) {
  const part = (start) => parseInt(hex.slice(start, start + 2), 16);
  return `rgba(${part(1)},${part(3)},${part(5)},${alpha})`;
}
