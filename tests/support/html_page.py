"""A strict HTML parser for reports."""

from __future__ import annotations

from html.parser import HTMLParser

from millpond.report.markup import VOID


class Page(HTMLParser):
    """Elements, texts and headings of a page. Fails if tags do not match, ids repeat, or a link has no target."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.texts: list[tuple[str, str]] = []
        assert text.startswith("<!DOCTYPE html>\n<html ")
        self.feed(text)
        self.close()
        assert not self.open, f"never closed: {self.open}"
        ids = [attributes["id"] for _, attributes in self.elements if "id" in attributes]
        assert len(ids) == len(set(ids))
        assert {attributes["href"].removeprefix("#") for name, attributes in self.elements if name == "a"} == set(ids)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len({name for name, _ in attrs}) == len(attrs), f"<{tag}> has an attribute twice"
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append((self.open[-1] if self.open else "", data))

    @property
    def text(self) -> str:
        return "\n".join(data for _, data in self.texts)

    @property
    def headings(self) -> list[str]:
        return [data for tag, data in self.texts if tag == "h2"]

    def count(self, tag: str, class_: str | None = None) -> int:
        return sum(
            name == tag and (class_ is None or attributes.get("class") == class_) for name, attributes in self.elements
        )

    def loads(self) -> list[str]:
        """Return everything that a browser would fetch or run."""
        sources = [
            attributes[key]
            for _, attributes in self.elements
            for key in ("src", "href", "action", "data")
            if key in attributes
        ]
        handlers = [key for _, attributes in self.elements for key in attributes if key.startswith("on")]
        active = [name for name, _ in self.elements if name in ("script", "iframe", "object", "embed", "link", "form")]
        inside = [s for s in sources if s.startswith(("#", "data:image/gif;base64,"))]
        return [*(source for source in sources if source not in inside), *handlers, *active]
