"""The page around its sections. It asks nothing of any other place: no script, no font, no picture from outside, and a
policy in its head that forbids the browser to fetch any."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from plimsoll.report.page.markup import Markup, element, joined
from plimsoll.report.page.style import STYLE

POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


@dataclass(frozen=True)
class Section:
    title: str
    content: Markup


def page(
    *, title: str, verdict: Markup, facts: Sequence[tuple[str, str]], sections: Sequence[Section], made: str
) -> str:
    """A whole document. `facts` are the figures that stand first; `made` is the last line."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", f"{title} - plimsoll"),
        element("style", Markup(STYLE)),
    )
    body = element(
        "body",
        element("a", "To the content", href="#content", class_="skip"),
        element(
            "header",
            element("h1", title),
            verdict,
            element(
                "dl",
                *(element("div", element("dt", name), element("dd", said)) for name, said in facts),
                class_="facts",
            ),
        ),
        element("main", *(_section(one) for one in sections), id="content", tabindex="-1"),
        element("footer", element("p", made)),
    )
    return joined(Markup("<!doctype html>\n"), element("html", head, body, lang="en"), "\n")


def _section(section: Section) -> Markup:
    return element("section", element("h2", section.title), section.content, aria_label=section.title)
