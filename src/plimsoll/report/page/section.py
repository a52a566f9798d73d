"""Classes for a page and its sections, and their rendering to HTML by templates.

A page is one file without scripts. Its Content-Security-Policy forbids the browser to load other resources.
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
"""Largest number of characters of one text in a page. Longer texts are cut off, so that the page stays small."""
NOT_ALLOWED = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")
"""Pattern of characters that HTML forbids."""


@dataclass(frozen=True, kw_only=True)
class Section:
    """Section of a page, rendered in the order of its fields. Empty tables and charts are left out."""

    title: str = ""
    sentences: Sequence[str] = ()
    charts: Sequence[Chart | Bars] = ()
    samples: Sequence[Mapping[str, Any]] = ()
    """Texts or grids that the model has produced, as dictionaries in the format of `Uses.exhibits`."""
    tables: Sequence[Table] = ()
    folded: Sequence[Table] = ()
    """Tables that the page hides until the reader opens them."""
    commands: Mapping[str, str] = field(default_factory=dict)
    """Map from the label of a command, like `Continues it`, to the command, which the reader may copy."""

    @property
    def is_empty(self) -> bool:
        """True if the section has nothing to show."""
        parts = [chart.values for chart in self.charts]
        parts += [table.rows for table in (*self.tables, *self.folded)]
        return not any([self.sentences, self.samples, self.commands, *parts])


@dataclass(frozen=True, kw_only=True)
class Page:
    """An HTML page: title, verdict, key numbers and sections."""

    title: str
    verdict: str
    """First sentence of the page, with the most important result."""
    sections: Sequence[Section]
    facts: Mapping[str, str] = field(default_factory=dict)
    """Map from the name to the text of each key number at the top of the page."""
    is_alarming: bool = False
    """True if the verdict reports a problem, like an exceeded budget."""

    def html(self, *, footer: str) -> str:
        """Renders the page as an HTML document.

        Args:
            footer: Last line of the page, with its date and the version of plimsoll.
        """
        return _rendered("page.html.j2", page=self, footer=footer)


def _rendered(template: str, **values: Any) -> str:
    """Renders a template of this folder."""
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
    """Replaces characters that HTML forbids in a string, and truncates a long string. Other values stay unchanged."""
    if not isinstance(value, str) or hasattr(value, "__html__"):
        return value
    text = NOT_ALLOWED.sub("\N{REPLACEMENT CHARACTER}", value)
    return text if len(text) <= MOST_TEXT else f"{text[:MOST_TEXT]}\N{HORIZONTAL ELLIPSIS}"
