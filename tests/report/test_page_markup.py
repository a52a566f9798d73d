"""What is not markup is escaped: whatever text it is, the page around it stays the same elements."""

import unicodedata

from hypothesis import example, given

from plimsoll.report.page.markup import element, joined, shortened, text
from reading_pages import ANY_TEXT, Seen


@given(ANY_TEXT)
@example("<script>alert(1)</script>")
@example("</p><img src=x onerror=alert(1)>")
@example('" onload="alert(1)')
@example("\x00\ud800&lt;")
def test_any_text_stays_text(said):
    seen = Seen(element("p", said, class_="note"))
    assert seen.tags == [("p", (("class", "note"),))]
    assert [one for one in "".join(seen.data) if _is_plain(one)] == [one for one in said if _is_plain(one)]


def _is_plain(character):
    """What a page holds as it is: no control, no half of a pair, nothing that Unicode keeps for no character."""
    return unicodedata.category(character) not in ("Cc", "Cs", "Cn") and character != "\N{REPLACEMENT CHARACTER}"


@given(ANY_TEXT)
@example('"><script>alert(1)</script>')
@example("' onfocus='alert(1)")
def test_any_text_stays_the_value_of_its_attribute(said):
    seen = Seen(element("p", "x", aria_label=said))
    assert [tag for tag, _ in seen.tags] == ["p"]
    assert [name for name, _ in seen.tags[0][1]] == ["aria-label"]


@given(ANY_TEXT)
def test_a_page_can_always_be_written_as_utf_8(said):
    assert len(text(said).encode("utf-8")) >= len(said)


def test_markup_is_escaped_once():
    assert element("p", element("b", "a < b")) == "<p><b>a &lt; b</b></p>"
    assert joined("a & ", None, element("i", "b")) == "a &amp; <i>b</i>"


def test_a_long_text_is_shortened_and_says_so():
    assert shortened("x" * 1000, most=10) == "x" * 9 + "\N{HORIZONTAL ELLIPSIS}"
    assert shortened("short") == "short"
