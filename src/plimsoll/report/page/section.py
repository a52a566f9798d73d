"""Sections of a page as data, and the templates that draw them.

A page is one file without scripts. Its Content-Security-Policy forbids the browser to fetch anything.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from plimsoll.report.layout import Table
from plimsoll.report.palette import DARK, LIGHT
from plimsoll.report.picture import Bars, Chart, inline

MOST_TEXT = 4000
"""Characters of a text from outside, which cannot make a page arbitrarily large."""
NOT_ALLOWED = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")
"""Characters that no HTML document may hold."""


@dataclass(frozen=True, kw_only=True)
class Section:
    """Part of a page, drawn in the order of its fields. What has no rows or no values is left out."""

    title: str = ""
    sentences: Sequence[str] = ()
    charts: Sequence[Chart | Bars] = ()
    samples: Sequence[Mapping[str, Any]] = ()
    """Texts or grids that a model has made, as `Uses.exhibits` gives them."""
    tables: Sequence[Table] = ()
    folded: Sequence[Table] = ()
    """Tables that a reader unfolds."""
    commands: Mapping[str, str] = field(default_factory=dict)
    """Commands to copy, by what they do."""

    @property
    def is_empty(self) -> bool:
        parts = [chart.values for chart in self.charts]
        parts += [table.rows for table in (*self.tables, *self.folded)]
        return not any([self.sentences, self.samples, self.commands, *parts])


@dataclass(frozen=True, kw_only=True)
class Page:
    """A whole document."""

    title: str
    verdict: str
    """What the reader wants to know first."""
    sections: Sequence[Section]
    facts: Mapping[str, str] = field(default_factory=dict)
    """Figures at the top, by name."""
    is_alarming: bool = False
    """True if the verdict is that something is wrong."""

    def html(self, *, footer: str) -> str:
        """Returns the document. `footer` is its last line: when and by which version it was made."""
        return _rendered("page.html.j2", page=self, footer=footer)


def _rendered(template: str, **values: Any) -> str:
    from jinja2 import Environment, FileSystemLoader

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_allowed,
    )
    environment.globals |= {"light": LIGHT, "dark": DARK, "inline": inline}
    return environment.get_template(template).render(values)


def _allowed(value: Any) -> Any:
    """Returns a text as it may stand in a page. What is HTML already stays as it is."""
    if not isinstance(value, str) or hasattr(value, "__html__"):
        return value
    text = NOT_ALLOWED.sub("\N{REPLACEMENT CHARACTER}", value)
    return text if len(text) <= MOST_TEXT else f"{text[:MOST_TEXT]}\N{HORIZONTAL ELLIPSIS}"
