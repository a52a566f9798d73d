"""Renders the chat template of a tokenizer, as `transformers` does.

A template is a Jinja program from a model's publisher. It runs in Jinja's sandbox, without access to Python's
internals.

Source: `transformers.utils.chat_template_utils`, 5.24.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from plimsoll.data import in_short
from plimsoll.data.text.formats import encodable
from plimsoll.errors import DataError

Span = tuple[int, int]
"""A range of characters: index of its first character, and index after its last character."""


class Rendered(NamedTuple):
    """A conversation as text."""

    text: str
    spans: list[Span]
    """Spans of the text that the assistant wrote, in order."""


class ChatTemplate:
    """A compiled template with its special tokens."""

    def __init__(self, source: str, *, tokens: Mapping[str, str], name: str, now: datetime | None = None) -> None:
        """Compiles the template.

        Args:
            source: Text of the template.
            tokens: Dict from names of special tokens, like bos_token and eos_token, to their text.
            name: File of the template, for error messages.
            now: Time that `strftime_now` formats in all renderings; by default the time of this call.

        Raises:
            DataError: The text is not a Jinja template.
        """
        self.source, self.name, self._tokens = source, name, dict(tokens)
        self._now = now or datetime.now()
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
        )
        self._generation: Any = environment.extensions[_Generation.identifier]
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = self._now.strftime
        try:
            self._template = environment.from_string(source)
        except Exception as problem:  # Python's compiler may also reject the code that Jinja generates
            raise DataError(
                f"{name} is no chat template ({in_short(problem)}): name another with --chat-template FILE"
            ) from problem

    @property
    def marks_generation(self) -> bool:
        """True if the template marks the assistant's text by `{% generation %}` blocks."""
        return re.search(r"\{%[-+]?\s*generation\s*[-+]?%\}", self.source) is not None

    @property
    def day(self) -> str | None:
        """Date with which the template is rendered, like 2026-11-25; None if the template uses no date."""
        return self._now.date().isoformat() if "strftime_now" in self.source else None

    def render(
        self, messages: Sequence[Mapping[str, Any]], *, prompt: bool = False, tools: Any = None, where: str
    ) -> Rendered:
        """Returns the conversation as text.

        Args:
            messages: From `messages.checked_messages`.
            prompt: Whether to append the header of the assistant's next message (`add_generation_prompt`).
            tools: JSON schemas of the functions that the assistant may call.
            where: Name of the record in error messages.

        Raises:
            DataError: The template rejects the messages, or fails.
        """
        values = {"messages": messages, "tools": tools, "documents": None, "add_generation_prompt": prompt}
        generation = self._generation
        generation.begin()
        text = ""
        try:
            for piece in self._template.generate(**self._tokens, **values):
                text += piece
                generation.position = len(text)
        except Exception as problem:  # a template may raise any of Python's exceptions
            raise DataError(
                f"{where} cannot be rendered by the chat template {self.name} ({in_short(problem, kind=True)}):"
                " correct the record, or name another template with --chat-template FILE"
            ) from problem

        # Check that the text contains each generation block at the index where the block was written.
        spans = []
        for start, block in generation.blocks:
            end = start + len(block)
            spans.append((start, end))
            if text[start:end] != block:
                raise DataError(
                    f"the chat template {self.name} moves or changes what a generation block wrote, so that its tokens"
                    " cannot be found: take the block out of macros and set blocks, or remove it"
                )
        return Rendered(encodable(text), spans)


class _Generation(Extension):
    """Records the text of each `{% generation %}` block, and the index of its first character."""

    tags = {"generation"}  # noqa: RUF012  (Jinja's own annotation)

    def begin(self) -> None:
        self.position = 0
        """Number of characters rendered so far."""
        self.blocks: list[tuple[int, str]] = []

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("note"), [], [], body).set_lineno(line)

    def note(self, caller: Callable[[], str]) -> str:
        """Records a block and the index of its beginning. Returns its text."""
        text = caller()
        self.blocks.append((self.position, text))
        return text


def _raise(message: str) -> None:
    raise TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
