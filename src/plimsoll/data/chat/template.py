"""The chat template of a tokenizer, rendered as `transformers` renders it.

A template is a Jinja program that comes with a model, from whoever published it: it runs in Jinja's sandbox, which
keeps it from Python's internals, and what it may write, repeat and call is limited, so that it ends. The sandbox does
not limit memory: a template can still fail with a MemoryError.

Source: `transformers.utils.chat_template_utils`, 5.24.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from datetime import datetime
from typing import Any, NamedTuple

from jinja2 import TemplateError, nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from plimsoll.data import in_short
from plimsoll.errors import DataError
from plimsoll.units import MIB

LONGEST = 64 * MIB
"""Characters that a template may write: four times the longest line of a file."""
MOST_STEPS = 1_000_000
"""Numbers that all `range` of one rendering may have together."""
MOST_PASSES = 10_000_000
"""Passes through loops that a rendering may have, a call of a macro or function counted as CALL: some seconds."""
CALL = 10

Span = tuple[int, int]
"""First character, and the one after the last."""


class Rendered(NamedTuple):
    """A conversation as text."""

    text: str
    spans: list[Span]
    """What the template's `{% generation %}` blocks wrote, in order."""


class ChatTemplate:
    """A compiled template with the special tokens that it may name."""

    def __init__(self, source: str, *, tokens: Mapping[str, str], name: str, now: datetime | None = None) -> None:
        """Compiles the template.

        Args:
            source: Its text.
            tokens: Spelling of special tokens by name: bos_token, eos_token and others.
            name: File it is from, for refusals.
            now: Time that `strftime_now` tells; by default that of this call, for all renderings.

        Raises:
            DataError: It is no Jinja template.
        """
        self.source, self.name, self._tokens = source, name, dict(tokens)
        self._now = now = now or datetime.now()
        environment = _Environment(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
        environment.filters |= {"tojson": _tojson, PASSES: _passes}
        del environment.globals["lipsum"]  # any amount of text, by a single call
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = lambda format: now.strftime(format)
        try:
            self._template = environment.from_string(source)
        except Exception as problem:  # Python's own compiler may refuse what Jinja made of it
            raise DataError(
                f"{name} is no chat template ({in_short(problem)}): name another with --chat-template FILE"
            ) from problem

    @property
    def marks_generation(self) -> bool:
        """True where the template itself says what the assistant writes, by `{% generation %}` blocks."""
        return re.search(r"\{%[-+]?\s*generation\s*[-+]?%\}", self.source) is not None

    @property
    def day(self) -> str | None:
        """Day that the template is told, like 2026-11-25; None if it asks for none."""
        return self._now.date().isoformat() if "strftime_now" in self.source else None

    def render(
        self, messages: Sequence[Mapping[str, Any]], *, prompt: bool = False, tools: Any = None, where: str
    ) -> Rendered:
        """Returns the conversation as text.

        Args:
            messages: From `messages.checked_messages`.
            prompt: Whether the beginning of the assistant's next message is added (`add_generation_prompt`).
            tools: JSON schemas of the functions that the assistant may call.
            where: The record, for refusals.

        Raises:
            DataError: The template refuses the messages, fails, or goes beyond its limits.
        """
        written, steps = _Written(), _Steps()
        values = {"messages": messages, "tools": tools, "documents": None, "add_generation_prompt": prompt}
        token = _WRITTEN.set(written)
        try:
            text = written.all_of(self._template.generate(**(self._tokens | values | {"range": steps.range})))
        except Exception as problem:  # a template may raise whatever Python does
            raise DataError(
                f"{where} cannot be rendered by the chat template {self.name} ({in_short(problem, kind=True)}):"
                " correct the record, or name another template with --chat-template FILE"
            ) from problem
        finally:
            _WRITTEN.reset(token)
        spans = [(start, start + len(block)) for start, block in written.blocks]
        if [text[start:end] for start, end in spans] != [block for _, block in written.blocks]:
            raise DataError(
                f"the chat template {self.name} moves or changes what a generation block wrote, so that its tokens"
                " cannot be found: take the block out of macros and set blocks, or remove it"
            )
        # JSON can spell half of a surrogate pair, which no tokenizer takes
        return Rendered(text if text.isascii() else text.encode("utf-8", "replace").decode(), spans)


class _Written:
    """Pieces that were written so far, and where generation blocks began."""

    def __init__(self) -> None:
        self.length, self.passes, self.blocks = 0, 0, list[tuple[int, str]]()

    def count(self, passes: int) -> None:
        self.passes += passes
        if self.passes > MOST_PASSES:
            raise SecurityError(f"its loops and calls go on beyond {MOST_PASSES:,} passes, the limit")

    def all_of(self, pieces: Iterator[str]) -> str:
        kept = []
        for piece in pieces:
            kept.append(piece)
            self.length += len(piece)
            if self.length > LONGEST:
                raise SecurityError(f"it writes more than {LONGEST:,} characters, the limit")
        return "".join(kept)


_WRITTEN: ContextVar[_Written | None] = ContextVar("written", default=None)
PASSES = "passes of a loop"
"""Filter around what every loop goes over, by a name that no template can spell."""


@pass_context  # never computed when the template is compiled
def _passes(_context: Any, iterable: Any) -> Iterator[Any]:
    for item in iterable:
        _count(1)
        yield item


def _count(passes: int) -> None:
    if (written := _WRITTEN.get()) is not None:
        written.count(passes)


class _Generation(Extension):
    tags = {"generation"}  # noqa: RUF012  (Jinja's own annotation)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("note"), [], [], body).set_lineno(line)

    def note(self, caller: Callable[[], str]) -> str:
        """Returns what the block writes, and notes where it begins."""
        text = caller()
        if (written := _WRITTEN.get()) is not None:
            written.blocks.append((written.length, text))
        return text


class _Environment(ImmutableSandboxedEnvironment):
    """Jinja's sandbox; products and powers that would fill the memory are refused, passes and calls are counted."""

    intercepted_binops = frozenset({"*", "**"})

    def _generate(self, source: nodes.Template, *more: Any, **named: Any) -> str:
        for loop in source.find_all(nodes.For):
            loop.iter = nodes.Filter(loop.iter, PASSES, [], [], None, None, lineno=loop.lineno)
        return super()._generate(source, *more, **named)

    def call(self, context: Any, called: Any, /, *args: Any, **named: Any) -> Any:
        _count(CALL)
        return super().call(context, called, *args, **named)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" and abs(right) > 64:
            raise SecurityError(f"the power {right} is larger than 64, the limit")
        for many, times in ((left, right), (right, left)):
            if operator == "*" and isinstance(many, Sequence) and len(many) * times > LONGEST:
                raise SecurityError(f"a product of {len(many) * times:,} characters is larger than {LONGEST:,}")
        return super().call_binop(context, operator, left, right)


class _Steps:
    """Numbers that `range` may still have in a rendering."""

    def __init__(self) -> None:
        self.left = MOST_STEPS

    def range(self, *bounds: int) -> range:
        numbers = range(*bounds)
        self.left -= len(numbers)
        if self.left < 0:
            raise SecurityError(f"its ranges have more than {MOST_STEPS:,} numbers, the limit")
        return numbers


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
