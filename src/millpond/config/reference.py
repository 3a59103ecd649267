"""The page docs/configuration.md, generated from the sections: `python -m millpond.config.reference`."""

from __future__ import annotations

from millpond.config.keys import Key, keys, sections
from millpond.config.violations import show
from millpond.kinds import KINDS

HEAD = """# Settings

Every key of every recipe. This page is generated from the code by `make docs`; a test keeps it current.
`millpond plan RECIPE --explain KEY` shows one of them with its value in that recipe.

Whole numbers may be written `4096`, `4_096` or `1e6`. Kinds: {kinds}.
"""


def _all_keys() -> dict[str, Key]:
    """Return the keys of all kinds; if a section differs between kinds, the first kind decides its order."""
    merged: dict[str, Key] = {}
    for kind in KINDS:
        for name, key in keys(kind).items():
            merged.setdefault(name, key)
    return merged


def _all_sections() -> dict[str, str]:
    return {name: text for kind in KINDS for name, text in sections(kind).items()}


def page() -> str:
    """Return the page as Markdown."""
    lines = [HEAD.format(kinds=", ".join(f"`{kind}`" for kind in KINDS))]
    by_section: dict[str, list[Key]] = {}
    for key in _all_keys().values():
        by_section.setdefault(key.name.rpartition(".")[0], []).append(key)
    for section, members in by_section.items():
        title, text = (f"`{section}`", _all_sections()[section]) if section else ("Top level", "")
        lines += [f"## {title}", "", *([text, ""] if text else []), "| key | default | type | kinds | meaning |",
                  "|---|---|---|---|---|"]  # fmt: skip
        for key in members:
            kind = f"{key.type} ({key.limits})" if key.limits else key.type
            default = "" if key.default in ("", {}, ()) else f"`{show(key.default)}`"
            kinds = "all" if len(key.kinds) == len(KINDS) else ", ".join(key.kinds)
            lines.append(f"| `{key.name}` | {default} | {kind} | {kinds} | {key.description} |")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    print(page(), end="")
