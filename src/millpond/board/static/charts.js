// Charts with Plotly, which is loaded when the first one is drawn, and small curves as SVG.

import { h, svg } from "./dom.js";

export const COLOURS = 10;
let loading = null;

function load() {
  loading ??= new Promise((done, fail) => {
    if (window.Plotly) return done(window.Plotly);
    const script = h("script", { src: "/plotly.js" });
    script.onload = () => done(window.Plotly);
    script.onerror = () => fail(new Error("the charts could not be loaded"));
    document.head.append(script);
  });
  return loading;
}

const variable = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
export const colour = (slot) => variable(`--c${slot % COLOURS}`);
const DASHES = ["solid", "dash", "dot", "dashdot"];
export const dash = (slot) => DASHES[Math.floor(slot / COLOURS) % DASHES.length];

// Plotly reads a few tags in its texts; names of runs and metrics are shown as they are.
export const plain = (text) => String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;").slice(0, 200);

function faded(text, opacity) {
  const hex = parseInt(text.slice(1), 16);
  return `rgba(${hex >> 16}, ${(hex >> 8) & 255}, ${hex & 255}, ${opacity})`;
}

// Centred moving average over a share of the curve.
export function smooth(values, share) {
  const reach = Math.round((values.length * share) / 2);
  if (reach < 1) return values;
  const sums = [0];
  for (const value of values) sums.push(sums.at(-1) + value);
  return values.map((_, k) => {
    const first = Math.max(0, k - reach), last = Math.min(values.length, k + reach + 1);
    return (sums[last] - sums[first]) / (last - first);
  });
}

// curves: [{label, slot, x, y, low, high, interval}]; levels: {name: value}
export function traces(curves, { smoothing = 0 } = {}) {
  const bands = [], lines = [];
  for (const curve of curves) {
    const main = colour(curve.slot), line = { color: main, width: 2, dash: dash(curve.slot) };
    if (curve.low) {
      const low = smooth(curve.low, smoothing), high = smooth(curve.high, smoothing);
      bands.push({
        x: [...curve.x, ...curve.x.toReversed()], y: [...high, ...low.toReversed()], fill: "toself", mode: "lines",
        fillcolor: faded(main, curve.interval ? 0.2 : 0.12), line: { width: 0 }, hoverinfo: "skip", showlegend: false,
      });
    }
    const y = smooth(curve.y, smoothing);
    if (y !== curve.y && !curve.interval) {
      lines.push({ x: curve.x, y: curve.y, mode: "lines", line: { ...line, width: 1 }, opacity: 0.25, hoverinfo: "skip" });
    }
    lines.push({
      x: curve.x, y, line, name: plain(curve.label), mode: curve.x.length < 30 ? "lines+markers" : "lines", marker: { size: 5 },
      hovertemplate: `%{y:.4g} at %{x:.4s}<extra>${plain(curve.label)}</extra>`,
    });
  }
  return [...bands, ...lines];
}

export function layout({ xTitle = "", yTitle = "", log = false, logX = false, levels = {}, marks = [], small = false, bare = false, key = "" }) {
  const ink = variable("--quiet"), axis = {
    gridcolor: variable("--grid"), linecolor: variable("--rule"), zeroline: false, automargin: true, fixedrange: small,
    tickfont: { size: small ? 11 : 13 }, exponentformat: "SI",
  };
  const named = Object.entries(levels);
  return {
    autosize: true, showlegend: false, uirevision: key, dragmode: small ? false : "zoom", hovermode: "closest",
    margin: { l: small ? 40 : 56, r: 14, t: 8, b: bare ? 4 : small ? 28 : 46 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: "system-ui, sans-serif", size: 13, color: ink },
    xaxis: { ...(bare ? { visible: false, fixedrange: true } : {}), ...(bare ? {} : axis), type: logX ? "log" : "linear", title: small ? undefined : { text: plain(xTitle), font: { size: 14 } }, showgrid: false, nticks: small ? 4 : 7 },
    yaxis: { ...(bare ? { visible: false, fixedrange: true, range: [-0.12, 1.26] } : {}), ...(bare ? {} : axis), type: log ? "log" : "linear", title: small ? undefined : { text: plain(yTitle), font: { size: 14 } }, nticks: small ? 4 : 7 },
    shapes: named.map(([, value]) => ({
      type: "line", xref: "paper", x0: 0, x1: 1, y0: value, y1: value, line: { color: ink, dash: "dash", width: 1 },
    })),
    annotations: [...named.map(([name, value]) => ({
      xref: "paper", x: 1, xanchor: "right", y: value, yanchor: "bottom", text: plain(name), showarrow: false,
    })), ...marks.map(({ x, y, text, strong }) => ({
      x, y, text, showarrow: false, bgcolor: variable("--card"), font: { size: 13, color: variable(strong ? "--ink" : "--quiet") },
    }))],
    hoverlabel: { bgcolor: variable("--card"), bordercolor: variable("--rule"), font: { color: variable("--ink"), size: 13 }, namelength: 60 },
  };
}

export async function draw(element, data, options) {
  const plotly = await load();
  if (!element.isConnected) return;
  await plotly.react(element, data, layout(options), { displayModeBar: false, responsive: true, displaylogo: false });
  element.dataset.drawn = String(Number(element.dataset.drawn ?? 0) + 1);
}

export function forget(element) {
  if (window.Plotly && element) window.Plotly.purge(element);
}

// A curve without axes, for a row of the list.
export function spark(values, { width = 84, height = 22, slot = null } = {}) {
  if (!values || values.length < 2) return svg("svg", { class: "spark", viewBox: `0 0 ${width} ${height}` });
  const low = Math.min(...values), range = Math.max(...values) - low || 1;
  const points = values.map((value, k) =>
    `${((k / (values.length - 1)) * (width - 4) + 2).toFixed(1)},${(height - 3 - ((value - low) / range) * (height - 6)).toFixed(1)}`);
  return svg("svg", { class: slot === null ? "spark" : `spark s${slot % COLOURS}`, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" },
    svg("polyline", { points: points.join(" ") }));
}
