"""A report whose charts are those of the board: the static page, with Plotly and the data of its curves in the same file.

The page stays one file that loads nothing; its policy allows the scripts that are in it, by their hashes, and no others. The
static charts stay in the page, for readers without scripts.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Any

from millpond.board.server import plotly_script, require_board
from millpond.durable import replace_file
from millpond.report.chart import COLOURS, Series
from millpond.report.curves import charted_metrics, metric_series
from millpond.report.facts import Facts
from millpond.report.page import CONTENT_SECURITY_POLICY
from millpond.report.summary import return_curves, return_levels

START = """
for (const figure of document.querySelectorAll("figure[data-chart]")) {
  const chart = JSON.parse(document.getElementById("curves").textContent)[figure.dataset.chart];
  if (!chart) continue;
  const element = h("div", { class: figure.closest(".multiples") ? "live small" : "live" });
  for (const drawn of figure.querySelectorAll("svg.chart")) drawn.remove();
  figure.prepend(h("figcaption", {}, chart.title), element);
  const paint = () => draw(element, traces(chart.curves, { smoothing: 0.03 }),
    { xTitle: chart.x, yTitle: "", levels: chart.levels, small: false, key: chart.title });
  paint();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paint);
}
"""
STYLES = ".live { height: 24rem; } .live.small { height: 15rem; }"


def make_interactive(facts: Facts, path: Path) -> None:
    """Replace a static report by one with live charts."""
    require_board()
    page = path.read_text("utf-8")
    data = json.dumps(curves_of(facts), allow_nan=False).replace("<", "\\u003c")
    scripts = [plotly_script().read_text("utf-8"), board_script()]
    hashes = " ".join(f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'" for text in scripts)
    policy = CONTENT_SECURITY_POLICY.replace("'none';", f"'none'; script-src {hashes};", 1)
    parts = [f"<style>{STYLES}</style>", f'<script type="application/json" id="curves">{data}</script>']
    parts += [f"<script>{text}</script>" for text in scripts]
    old = CONTENT_SECURITY_POLICY.replace("'", "&#x27;")
    if old not in page:
        raise AssertionError("the policy of the report is written in another way")
    page = page.replace(old, policy.replace("'", "&#x27;"), 1)
    before, end, after = page.rpartition("</body>")
    replace_file(path, (before + "".join(parts) + end + after).encode())


def board_script() -> str:
    """Return the board's own script for charts as one that is no module."""
    static = files("millpond.board") / "static"
    lines = [line for name in ("dom.js", "charts.js") for line in (static / name).read_text("utf-8").splitlines()]
    kept = (line.removeprefix("export ") for line in lines if not line.startswith("import "))
    return "(() => {\n" + "\n".join(kept) + START + "})();"


def curves_of(facts: Facts) -> dict[str, Any]:
    """Return the curves of each chart by the name that its figure has in the page."""
    axis = facts.axis.replace("_", " ")
    charts = {"return": _chart("return", axis, return_curves(facts), return_levels(facts))}
    charts |= {
        title: _chart(title, axis, metric_series(facts, metrics), {})
        for title, metrics in charted_metrics(facts).items()
    }
    return charts


def _chart(title: str, axis: str, curves: Sequence[Series], levels: dict[str, float]) -> dict[str, Any]:
    return {
        "title": title,
        "x": axis,
        "levels": levels,
        "curves": [
            {
                "label": curve.name,
                "slot": number % COLOURS,
                "x": [point.x for point in curve.points],
                "y": [point.y for point in curve.points],
                "low": [point.low for point in curve.points] if curve.has_band else None,
                "high": [point.high for point in curve.points] if curve.has_band else None,
                "interval": curve.is_interval,
            }
            for number, curve in enumerate(curves)
            if curve.points
        ],
    }
