"""Print line coverage by package, from the data that `make coverage` collects.

    python tests/coverage_report.py [DATA FILE]

Lines that run in worker processes or in compiled code are not seen by coverage, so the percentages are lower bounds:
compiled functions are left out of the count, workers are not.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path

from coverage import Coverage

import millpond

ROOT = Path(millpond.__file__).parent


def lines_by_package(data_file: str) -> dict[str, tuple[int, int]]:
    """Return the number of covered and of all lines of each package or top-level module."""
    coverage = Coverage(data_file=data_file)
    coverage.load()
    totals: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for path in sorted(ROOT.rglob("*.py")):
        _, statements, _, missing, _ = coverage.analysis2(str(path))
        package = path.relative_to(ROOT).parts[0].removesuffix(".py")
        totals[package][0] += len(statements) - len(missing)
        totals[package][1] += len(statements)
    return {package: (covered, lines) for package, (covered, lines) in totals.items() if lines}


def table(packages: dict[str, tuple[int, int]]) -> list[str]:
    """Return one line per package, the least covered first, and the total."""
    rows = sorted(packages.items(), key=lambda row: row[1][0] / row[1][1])
    total = tuple(sum(counts) for counts in zip(*packages.values(), strict=True))
    lines = [f"{'package':<14} {'lines':>7} {'covered':>8}"]
    return [*lines, *(f"{name:<14} {n:>7,} {covered / n:>8.1%}" for name, (covered, n) in [*rows, ("total", total)])]


if __name__ == "__main__":
    print("\n".join(table(lines_by_package(sys.argv[1] if len(sys.argv) > 1 else ".coverage"))))
