"""What docs/learners.md shows works as it says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "learners.md"


def test_the_programs_of_the_page_run() -> None:
    shared: dict[str, Any] = {}
    for code in re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.M | re.S):
        exec(compile(code, PAGE.name, "exec"), shared)
    assert shared["big"].updates == 5
