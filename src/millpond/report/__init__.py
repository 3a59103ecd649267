"""Reports: one page a run, made from its folder alone. See `order` for its sections."""

from millpond.report.facts import Facts, Picture, read_facts
from millpond.report.markup import Block
from millpond.report.page import Section, write_report

__all__ = ["Block", "Facts", "Picture", "Section", "read_facts", "write_report"]
