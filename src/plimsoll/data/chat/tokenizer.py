"""Encodes conversations, prompts and texts with a tokenizer and its chat template. Marks tokens that count in the loss.

If a text spells a special token, like "<|im_end|>", the spelling is encoded as that token, unlike in
`text.tokenizer.TextTokenizer`. A chat template needs this. `transformers` does the same, even for text of a user.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tokenizers import Tokenizer

from plimsoll.data import in_short
from plimsoll.data.chat.messages import checked_messages
from plimsoll.data.chat.spans import assistant_spans
from plimsoll.data.chat.template import ChatTemplate, Span
from plimsoll.data.text.tokenizer import TextTokenizer, json_beside, open_tokenizer, special_tokens
from plimsoll.errors import DataError

TEMPLATE, CONFIG = "chat_template.jinja", "tokenizer_config.json"
THE = "the conversation"
"""Name in error messages for a conversation that does not come from a file."""


class Example(NamedTuple):
    """The text of a document, before encoding."""

    text: str
    spans: list[Span] | None
    """Spans of characters whose tokens count in the loss; None for all characters."""
    whole: bool
    """True for a rendered conversation, whose text already has its special tokens."""


class ChatTokenizer:
    """A tokenizer of the `tokenizers` library, its special tokens, and its chat template if it has one."""

    def __init__(
        self, tokenizer: Tokenizer, *, template: ChatTemplate | None, tokens: Mapping[str, str], name: str
    ) -> None:
        """Copies the tokenizer. The copy encodes spelled special tokens, and includes white space in offsets."""
        exact = tokenizer.to_str().replace('"trim_offsets":true', '"trim_offsets":false')
        tokenizer = Tokenizer.from_str(exact)  # with trimmed offsets, tokens of white space would span no characters
        text = TextTokenizer(tokenizer, end_of_text=tokens.get("eos_token"), name=name)
        tokenizer.encode_special_tokens = False
        self._tokenizer, self.template, self.name = tokenizer, template, name
        self.tokens = dict(tokens)
        """Text of special tokens by name, like bos_token and eos_token."""
        self.size, self.dtype = text.size, text.dtype
        """`size`: highest id + 1. `dtype`: smallest type that holds all ids."""
        self.end_of_text, self.beginning = text.end_of_text, text.beginning()
        """`end_of_text`: id that ends a text. `beginning`: id that begins a text, or None."""
        added = tokenizer.get_added_tokens_decoder().values()
        self.special = frozenset(token.content for token in added) | {text.end_of_text_token}
        """Text of the special tokens, any of which may end a turn."""

    def encode(self, examples: Sequence[Example]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Returns two arrays for each example: int32 ids, and booleans that are True if an id counts in the loss.

        A text that is not a conversation gets the tokenizer's special tokens and end-of-text, unless it has them.
        """
        rows: list[Any] = [None] * len(examples)
        for whole in (True, False):
            places = [place for place, example in enumerate(examples) if example.whole == whole]
            texts = [examples[place].text for place in places]
            encoded = self._tokenizer.encode_batch(texts, add_special_tokens=not whole) if texts else []
            for place, encoding in zip(places, encoded, strict=True):
                ids = np.fromiter(encoding.ids, np.int32, len(encoding))
                spans = examples[place].spans
                learned = np.ones(len(ids), bool) if spans is None else _within(encoding.offsets, spans)
                rows[place] = (ids, learned) if whole else self._ended(ids, learned)
        return rows

    def _ended(self, ids: np.ndarray, learned: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if len(ids) > 1 and ids[0] == ids[1] == self.beginning:  # the text itself begins with this token
            ids, learned = ids[1:], learned[1:]
        if len(ids) and ids[-1] == self.end_of_text:
            learned[-1] = True
            return ids, learned
        return np.append(ids, np.int32(self.end_of_text)), np.append(learned, True)

    def conversation(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        first: int = 0,
        learn_all: bool = False,
        tools: Any = None,
        where: str = THE,
    ) -> Example:
        """Renders a conversation as an example.

        Args:
            messages: From `checked_messages`.
            first: Index of the first message after the prompt. The prompt does not count in the loss.
            learn_all: True if all tokens count in the loss, False if only the assistant's do.
            tools: JSON schemas of the functions that the assistant may call, or None.
            where: Name of the record in error messages.
        """
        template = self._needed(where)
        if learn_all:
            return Example(template.render(messages, tools=tools, where=where).text, None, True)
        rendered = assistant_spans(template, messages, first=first, tools=tools, special=self.special, where=where)
        return Example(*rendered, True)

    def prompt_of(self, messages: Sequence[Mapping[str, Any]], *, tools: Any = None) -> np.ndarray:
        """Returns the int32 ids of a prompt, after which a model generates the assistant's answer.

        Args:
            messages: Objects with role and content; the last is usually the user's.
            tools: JSON schemas of the functions that the assistant may call.

        Raises:
            DataError: There is no chat template, the template fails, or the messages are invalid.
        """
        checked = checked_messages(messages, THE)
        text = self._needed(THE).render(checked, prompt=True, tools=tools, where=THE).text
        return self.encode([Example(text, None, True)])[0][0]

    def stops(self) -> frozenset[int]:
        """Returns the ids that end an answer: end-of-text, and the template's end-of-turn token."""
        ends = {self.end_of_text}
        if self.template is not None:
            asked = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
            with suppress(DataError):  # the template may need further messages
                ids, learned = self.encode([self.conversation(asked)])[0]
                last = int(ids[learned][-1])
                ends |= {last} if self.decode([last]) in self.special else set()
        return frozenset(ends)

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """Returns the text of the ids, including special tokens."""
        return self._tokenizer.decode([int(i) for i in ids], skip_special_tokens=False)

    def identity(self) -> dict[str, Any]:
        """Returns all that determines the ids, as JSON: tokenizer, special tokens and chat template."""
        template = None if self.template is None else self.template.source
        return {"tokenizer": self._tokenizer.to_str(), "tokens": self.tokens, "template": template}

    def _needed(self, where: str) -> ChatTemplate:
        if self.template is None:
            raise DataError(
                f"{where} has messages, and the tokenizer {self.name} has no chat template to write it as text:"
                " name one with --chat-template FILE (a .jinja file, such as the one of the model's -Instruct"
                " version), or use records with `prompt` and `completion`, or `text`"
            )
        return self.template


def load_chat_tokenizer(
    path: str | Path, *, chat_template: str | Path | None = None, day: str | None = None
) -> ChatTokenizer:
    """Loads a tokenizer as `load_tokenizer` does, with the special tokens and the chat template beside it.

    Args:
        path: A tokenizer.json, or its folder. The chat template is chat_template.jinja in the same folder, else
            `chat_template` in tokenizer_config.json.
        chat_template: A file with another template.
        day: Date with which the template is rendered, like 2026-11-25; by default today.

    Raises:
        DataError: A file is missing or unreadable, or a template is invalid.
    """
    tokenizer, file = open_tokenizer(path)
    tokens = special_tokens(file)
    found = _template_beside(file) if chat_template is None else _template_in(Path(chat_template).expanduser())
    template = None
    if found is not None:
        source, name = found
        now = None if day is None else datetime.fromisoformat(day)
        template = ChatTemplate(source, tokens=tokens, name=name, now=now)
    return ChatTokenizer(tokenizer, template=template, tokens=tokens, name=str(file))


def save_chat_tokenizer(path: str | Path, out: Path, *, chat_template: str | Path | None = None) -> None:
    """Copies the files that `load_chat_tokenizer` reads, so that it loads the same tokenizer from the folder `out`.

    Args:
        path: As for `load_chat_tokenizer`.
        out: The folder.
        chat_template: As for `load_chat_tokenizer`.
    """
    _, file = open_tokenizer(path)
    out.mkdir(parents=True, exist_ok=True)
    merges = file.name.removesuffix("vocab.json") + "merges.txt"
    for name in (file.name, merges, CONFIG, "special_tokens_map.json", "generation_config.json", TEMPLATE):
        if (file.parent / name).is_file():
            shutil.copyfile(file.parent / name, out / name)
    if chat_template is not None:
        source, _ = _template_in(Path(chat_template).expanduser())
        (out / TEMPLATE).write_text(source, "utf-8")


def _template_in(file: Path) -> tuple[str, str]:
    try:
        return file.read_bytes().decode("utf-8"), str(file)
    except (OSError, UnicodeDecodeError) as problem:
        raise DataError(
            f"--chat-template {file} cannot be read as text ({in_short(problem)}): name a .jinja file in UTF-8"
        ) from None


def _template_beside(file: Path) -> tuple[str, str] | None:
    """Returns the chat template of a tokenizer and the name of the template's file; None if there is no template."""
    if (own := file.parent / TEMPLATE).is_file():
        return _template_in(own)
    template = json_beside(file, CONFIG).get("chat_template")
    if isinstance(template, list):  # several named templates, such as one for tools
        templates = {entry["name"]: entry["template"] for entry in template}
        template = templates.get("default")
        if template is None:
            raise DataError(
                f"{file.with_name(CONFIG)} has chat templates named {', '.join(templates)}, and none named default:"
                " write the intended one into a file, and name it with --chat-template FILE"
            )
    return None if template is None else (template, str(file.with_name(CONFIG)))


def _within(offsets: Sequence[Span], spans: Sequence[Span]) -> np.ndarray:
    """Returns a boolean for each token: True if a character of the token lies in a span.

    `offsets` are the ranges of characters of the tokens. Spans are in order.
    """
    begin, end = np.fromiter(chain.from_iterable(offsets), np.int64, 2 * len(offsets)).reshape(-1, 2).T
    edges = np.array([*spans, (2**62, 2**62)])
    span = np.searchsorted(edges[:, 1], begin, side="right")
    return end > edges[span, 0]
