"""HTML and SVG, put together from elements: what is not markup already is escaped, so no caller can forget to.

    element("p", "3 < 4 in ", element("b", run_name), class_="note")

Characters that no HTML document may hold (NUL, lone surrogates of a file name that is not UTF-8) become U+FFFD.
"""

import html
import re

VOID = frozenset({"meta", "br", "hr", "path", "line", "rect", "circle", "polyline"})
"""Elements without content; those of SVG are closed, which HTML allows them."""

_NOT_ALLOWED = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def text(value: object) -> Markup:
    if isinstance(value, Markup):
        return value
    return Markup(html.escape(_NOT_ALLOWED.sub("\N{REPLACEMENT CHARACTER}", str(value))))


def joined(*parts: object) -> Markup:
    """One after another; None is nothing."""
    return Markup("".join(text(part) for part in parts if part is not None))


def element(name: str, /, *content: object, **attributes: object) -> Markup:
    """`class_` is the attribute `class`, `aria_label` is `aria-label`; an attribute that is None is left out."""
    words = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{text(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in VOID:
        return Markup(f"<{name}{words}>" if name in ("meta", "br", "hr") else f"<{name}{words}/>")
    return Markup(f"<{name}{words}>{joined(*content)}</{name}>")


def shortened(value: object, *, most: int = 400) -> str:
    """Of a text from outside: a page is not to grow with it."""
    said = str(value)
    return said if len(said) <= most else f"{said[: most - 1]}\N{HORIZONTAL ELLIPSIS}"
