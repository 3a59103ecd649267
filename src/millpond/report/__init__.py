"""Reports: one self-contained HTML page per run, written from its folder alone.

`facts` reads the folder; `page` has the order of the sections, what differs between kinds of runs, and writes the file. A
section is a function of the run's facts that returns a `Block`: `summary` (with the episode and evaluations), `iteration` (the
nine stages of PPO), `curves`. `chart` draws SVG charts, `markup` builds escaped HTML.
"""

from millpond.report.facts import Facts, Picture, read_facts
from millpond.report.markup import Block
from millpond.report.page import Section, write_report

__all__ = ["Block", "Facts", "Picture", "Section", "read_facts", "write_report"]
