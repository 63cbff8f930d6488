"""A study's report as one value, made from its rows: what was tried, seen, decided and spent.

Nothing is read, drawn or decided here: ``agent.api`` says it as JSON and as a page.
"""

from agent.report.assembly import Cost, FrontRow, Report, Run, assemble
from agent.report.commands import Reproduction, serve_line
from agent.report.figures import Figures, Load, Rate
from agent.report.finalists import Finalist

__all__ = [
    "Cost",
    "Figures",
    "Finalist",
    "FrontRow",
    "Load",
    "Rate",
    "Report",
    "Reproduction",
    "Run",
    "assemble",
    "serve_line",
]
