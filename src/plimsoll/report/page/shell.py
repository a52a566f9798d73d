"""HTML document around the sections of a page.

It loads nothing: there is no script, font or picture from elsewhere, and its Content-Security-Policy forbids any.
"""

from __future__ import annotations

from collections.abc import Sequence

from plimsoll.report.page.markup import Markup, element, joined
from plimsoll.report.page.style import STYLE

POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def page(
    *,
    title: str,
    verdict: Markup,
    facts: Sequence[tuple[str, str]],
    sections: Sequence[tuple[str, Markup]],
    footer: str,
) -> str:
    """Returns a whole document.

    Args:
        title: Heading and name of the page.
        verdict: What the reader wants to know first.
        facts: Names and values of the figures at the top.
        sections: Parts of the page, in order, each with its heading.
        footer: Last line: when and by which version the page was made.
    """
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", f"{title} - plimsoll"),
        element("style", Markup(STYLE)),
    )
    parts = [element("section", element("h2", heading), content, aria_label=heading) for heading, content in sections]
    body = element(
        "body",
        element("a", "To the content", href="#content", class_="skip"),
        element(
            "header",
            element("h1", title),
            verdict,
            element(
                "dl",
                *(element("div", element("dt", name), element("dd", value)) for name, value in facts),
                class_="facts",
            ),
        ),
        element("main", *parts, id="content", tabindex="-1"),
        element("footer", element("p", footer)),
    )
    return joined(Markup("<!doctype html>\n"), element("html", head, body, lang="en"), "\n")
