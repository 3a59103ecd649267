"""How a report looks: the style sheets of the package, and a picture that stands alone with those that it needs."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

from millpond.report.markup import Markup, tag


@cache
def style_sheet(*names: str) -> Markup:
    """The text of the packaged style sheets; it goes into the page itself."""
    return Markup("".join((files("millpond.report") / "css" / f"{name}.css").read_text("utf-8") for name in names))


def standalone(picture: Markup) -> str:
    """A chart as an SVG file of its own. Colours are written out, for viewers that know no variables."""
    light, dark = (dict(re.findall(r"--(\w+): (#\w+)", part)) for part in style_sheet("colours").split("@media"))
    rules = style_sheet("pictures")
    styles = f"{_filled(rules, light)}@media (prefers-color-scheme: dark) {{ {_filled(rules, dark)} }}"
    head, rest = picture.split(">", 1)
    head = head.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    ground = tag("rect", width="100%", height="100%", class_="ground")
    return f"{head}>{tag('style', Markup(styles))}{ground}{rest}\n"


def _filled(rules: str, colours: dict[str, str]) -> str:
    return re.sub(r"var\(--(\w+)\)", lambda match: colours[match[1]], rules)
