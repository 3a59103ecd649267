"""One episode of the policy, to look at."""

from __future__ import annotations

from base64 import b64encode

from millpond.report.facts import Facts
from millpond.report.markup import tag
from millpond.report.section import Block


def episode(facts: Facts) -> Block | None:
    """The GIF inside the page, or a sentence that says why there is none."""
    picture = facts.picture
    if picture is None:
        return None
    if picture.gif is None:
        return Block("An episode", tag("p", picture.words, class_="quiet"))
    source = f"data:image/gif;base64,{b64encode(picture.gif).decode('ascii')}"
    image = tag("img", src=source, alt="an episode of the policy, animated")
    return Block("An episode", tag("figure", image, tag("figcaption", picture.words), class_="episode"))
