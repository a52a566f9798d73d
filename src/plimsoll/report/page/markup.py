"""HTML and SVG, built from elements. Everything that is not `Markup` is escaped, so no caller can forget to.

    element("p", "3 < 4 in ", element("b", run_name), class_="note")

Characters that no HTML document may hold (NUL, lone surrogates of a file name that is not UTF-8) become U+FFFD.
"""

import html
import re
from collections.abc import Collection, Iterable, Sequence

VOID = frozenset({"meta", "br", "hr", "path", "line", "rect", "circle", "polyline"})
"""Elements without content; those of SVG are closed, which HTML allows."""

_NOT_ALLOWED = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def text(value: object) -> Markup:
    """Returns the value as escaped text; `Markup` is returned as it is."""
    if isinstance(value, Markup):
        return value
    return Markup(html.escape(_NOT_ALLOWED.sub("\N{REPLACEMENT CHARACTER}", str(value))))


def joined(*parts: object) -> Markup:
    """Returns the parts one after another, without those that are None."""
    return Markup("".join(text(part) for part in parts if part is not None))


def element(name: str, /, *content: object, **attributes: object) -> Markup:
    """Returns an element.

    Args:
        name: `p`, `svg` and so on.
        content: Text and elements; None is skipped.
        attributes: `class_` is the attribute `class`, `aria_label` is `aria-label`; one that is None is left out.
    """
    words = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{text(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in VOID:
        return Markup(f"<{name}{words}>" if name in ("meta", "br", "hr") else f"<{name}{words}/>")
    return Markup(f"<{name}{words}>{joined(*content)}</{name}>")


def table(
    rows: Iterable[Sequence[object]],
    *,
    header: Sequence[str] = (),
    caption: str | None = None,
    names: bool = True,
    words: Collection[int] = (),
    total: bool = False,
) -> Markup:
    """Returns a table.

    Args:
        rows: Cells: text or `Markup`; None is an empty cell.
        header: Titles of the columns; an empty one is a cell without a title.
        caption: Text above the table.
        names: Whether the first cell of a row names it, and so is a header cell.
        words: Numbers of the columns that hold text, which may wrap, instead of numbers.
        total: Whether the last row is the sum of the others.
    """

    kinds = dict.fromkeys(words, "words")
    body = [
        [
            element("th", cell, scope="row") if names and at == 0 else element("td", cell, class_=kinds.get(at))
            for at, cell in enumerate(row)
        ]
        for row in rows
    ]
    titles = [
        element("th", title, scope="col", class_=kinds.get(at)) if title else element("td")
        for at, title in enumerate(header)
    ]
    lines = [element("tr", *cells) for cells in body]
    if total:
        lines[-1] = element("tr", *body[-1], class_="sum")
    return element(
        "table",
        None if caption is None else element("caption", caption),
        element("thead", element("tr", *titles)) if header else None,
        element("tbody", *lines),
    )


def scrolling(*content: object, name: str, class_: str = "scroll") -> Markup:
    """Returns a named region that scrolls by itself, with the keyboard too, so wide tables do not widen the page."""
    return element("div", *content, class_=class_, tabindex="0", role="region", aria_label=name)


def shortened(value: object, *, most: int = 400) -> str:
    """Returns a text from outside, cut to `most` characters, so that it cannot make a page arbitrarily large."""
    full = str(value)
    return full if len(full) <= most else f"{full[: most - 1]}\N{HORIZONTAL ELLIPSIS}"
