"""Learning curves of several seeds: written as JSON, drawn as PNG, and summarised in a line."""

from __future__ import annotations

import json
import platform
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np


@dataclass
class Curves:
    """Curves by seed: `points[seed]` is a list of (x, mean return of the evaluation) in the order of measurement."""

    title: str
    x: str
    settings: dict[str, Any]
    points: dict[int, list[tuple[int, float]]] = field(default_factory=dict)
    baselines: dict[str, float] = field(default_factory=dict)

    def add(self, seed: int, x: int, value: float) -> None:
        self.points.setdefault(seed, []).append((x, value))

    @property
    def last(self) -> list[float]:
        return [points[-1][1] for points in self.points.values()]

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        content = asdict(self) | {"machine": platform.processor() or platform.machine(), "last": self.last}
        path.with_suffix(".json").write_text(json.dumps(content, indent=1) + "\n")
        self._draw(path.with_suffix(".png"))

    def summary(self) -> str:
        seeds = ", ".join(f"{value:.1f}" for value in self.last)
        baselines = "".join(f"; {name} {value:.1f}" for name, value in self.baselines.items())
        return f"{self.title}: at the end {np.mean(self.last):.1f} (seeds: {seeds}){baselines}"

    def _draw(self, path: Path) -> None:
        import matplotlib as mpl

        mpl.use("Agg")
        from matplotlib import pyplot as plt

        figure, axes = plt.subplots(figsize=(6, 4))
        for seed, points in self.points.items():
            axes.plot(*zip(*points, strict=True), marker=".", label=f"seed {seed}")
        for name, value in self.baselines.items():
            axes.axhline(value, linestyle="--", color="grey", label=name)
        axes.set(title=self.title, xlabel=self.x, ylabel="return of evaluation episodes")
        axes.legend(fontsize="small")
        figure.tight_layout()
        figure.savefig(path, dpi=110)
        plt.close(figure)
