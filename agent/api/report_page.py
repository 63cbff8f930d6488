"""A study's report as one HTML page that needs nothing else: to be served, saved or sent on.

Its style stands inside it, so where it is served that one style is allowed by its hash, and
nothing else is: no script, no picture, no address.
"""

from __future__ import annotations

from base64 import b64encode
from functools import cache
from hashlib import sha256
from pathlib import Path

from agent.api.rendering import environment
from agent.api.report_schemas import ReportView

_STYLE = Path(__file__).parent / "static" / "serinus.css"


def page_of(report: ReportView) -> str:
    """The whole page."""
    return environment().get_template("report.html").render(report=report, style=_style())


def content_policy() -> dict[str, str]:
    """The header to serve the page with."""
    digest = b64encode(sha256(_style().encode()).digest()).decode()
    return {
        "Content-Security-Policy": f"default-src 'none'; style-src 'sha256-{digest}'; "
        "form-action 'none'; frame-ancestors 'none'; base-uri 'none'"
    }


@cache
def _style() -> str:
    return _STYLE.read_text(encoding="utf-8")
