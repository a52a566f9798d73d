"""What a reader of a page sees: its tags, and its words."""

import re
from html.parser import HTMLParser

from hypothesis import strategies as st

ANY_TEXT = st.text(st.characters(exclude_categories=()))


class Seen(HTMLParser):
    def __init__(self, page):
        super().__init__(convert_charrefs=True)
        self.tags, self.data = [], []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, tuple(attrs)))

    def handle_comment(self, data):
        self.tags.append(("comment", data))

    def handle_decl(self, decl):
        self.tags.append(("declaration", decl))

    def handle_data(self, data):
        self.data.append(data)


def lines_of(page):
    """Returns the texts of a page, one a line, without its style and without the numbers of its charts."""
    page = re.sub(r"<(style|svg).*?</\1>", "", page, flags=re.DOTALL)
    return [line for text in Seen(page).data for line in [" ".join(text.split())] if line]


def text_of(page):
    return " ".join(" ".join(Seen(page.split("</style>")[-1]).data).split())
