"""Finds the spans of a rendered conversation that the assistant wrote. Only their tokens count in the loss.

Some templates mark these spans by `{% generation %}` blocks. Without such blocks, two parts of the conversation are
rendered. The earlier messages, with `add_generation_prompt`, give the beginning of an assistant's message; the messages
up to and including that message give its end. Both parts must be prefixes of the complete conversation. They are not if
a template changes a turn once other turns follow: Qwen3's and DeepSeek-R1's drop its thinking. Then the complete
conversation is rendered with a placeholder as the message's content; the text around the placeholder must not differ.

The end-of-turn token belongs to the assistant's text; white space after that token does not.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import Any

from plimsoll.data.chat.template import ChatTemplate, Rendered, Span
from plimsoll.errors import DataError

_MARK = "\ue000plimsoll\ue001"
"""Placeholder for a message's content. Its private-use characters occur in no message."""


def assistant_spans(
    template: ChatTemplate,
    messages: Sequence[Mapping[str, Any]],
    *,
    first: int = 0,
    tools: Any = None,
    special: Collection[str],
    where: str,
) -> Rendered:
    """Returns the conversation as text, with the spans of the assistant's messages from message `first` on.

    Args:
        template: The chat template.
        messages: From `messages.checked_messages`.
        first: Index of the first message after the prompt. Messages of the prompt get no span.
        tools: As for `ChatTemplate.render`.
        special: Special tokens, as text, any of which may end a turn.
        where: Name of the record in error messages.

    Raises:
        DataError: The template fails, or the span of a message cannot be determined.
    """
    rendered = template.render(messages, tools=tools, where=where)
    numbers = [number for number, message in enumerate(messages) if message["role"] == "assistant"]
    if template.marks_generation:
        return Rendered(rendered.text, _wanted(rendered.spans, numbers, first, template, where))
    turns = _Turns(template, messages, rendered.text, tools, tuple(special), where)
    spans = [turns.span(number) for number in numbers if number >= first]
    if any(end > start for (_, end), (start, _) in pairwise(spans)):
        raise turns.unknown(first)
    return Rendered(rendered.text, [turns.without_space_after(span) for span in spans])


def _wanted(spans: list[Span], numbers: list[int], first: int, template: ChatTemplate, where: str) -> list[Span]:
    """Returns the `spans` in messages with an index of at least `first`. `numbers` are the messages' indices."""
    if first and len(spans) != len(numbers):
        raise DataError(
            f"{where} has {len(numbers)} messages of the assistant, and the chat template {template.name} marks"
            f" {len(spans)} as generated, so the completion's messages are unknown. Use `messages` instead"
        )
    return [span for span, number in zip(spans, numbers, strict=True) if number >= first] if first else spans


class _Turns:
    """Finds the assistant's messages of a conversation in the rendered text."""

    def __init__(
        self,
        template: ChatTemplate,
        messages: Sequence[Mapping[str, Any]],
        text: str,
        tools: Any,
        special: tuple[str, ...],
        where: str,
    ) -> None:
        self._template, self._messages, self._text = template, messages, text
        self._tools, self._special, self._where = tools, special, where

    def span(self, number: int) -> Span:
        """Returns the span of the assistant's message with the index `number`."""
        before = self._part(self._messages[:number], prompt=True)
        after = self._part(self._messages[: number + 1])
        start = len(before) if before and self._text.startswith(before) else None
        end = len(after) if after is not None and self._text.startswith(after) else None
        if start is None or end is None:
            marked_start, marked_end = self._by_mark(number)
            start = marked_start if start is None else start
            end = marked_end if end is None else end
        if start > end:
            raise self.unknown(number)
        return start, end

    def _by_mark(self, number: int) -> Span:
        marked = {**self._messages[number], "content": _MARK}
        whole = self._part([*self._messages[:number], marked, *self._messages[number + 1 :]]) or ""
        alone = self._part([*self._messages[:number], marked]) or ""
        if whole.count(_MARK) != 1 or alone.count(_MARK) != 1:
            raise self.unknown(number)
        before, after = whole.split(_MARK)
        ending = self._ending(number, alone.split(_MARK)[1], after)
        if not self._text.startswith(before) or not self._text.endswith(after) or ending is None:
            raise self.unknown(number)
        if len(before) + len(after) > len(self._text):
            raise self.unknown(number)
        return len(before), len(self._text) - len(after) + len(ending)

    def _ending(self, number: int, last: str, after: str) -> str | None:
        """Returns the text that ends the turn of message `number`; None if it cannot be determined.

        `last` is the text after the message's content if no message follows, `after` the text if messages follow. A
        template may extend `last`, as Phi-3's does by end-of-text. Then the first special token in the common beginning
        of both texts ends the turn.
        """
        if after.startswith(last):
            return last
        same = next((place for place, pair in enumerate(zip(last, after, strict=False)) if len(set(pair)) > 1), None)
        common = after[:same]
        ends = [common.find(token) + len(token) for token in self._special if token in common]
        return common[: min(ends)] if ends and "tool_calls" not in self._messages[number] else None

    def _part(self, messages: Sequence[Mapping[str, Any]], *, prompt: bool = False) -> str | None:
        """Renders some messages of the conversation. Returns None if the template fails on them."""
        try:
            return self._template.render(messages, prompt=prompt, tools=self._tools, where=self._where).text
        except DataError:
            return None

    def without_space_after(self, span: Span) -> Span:
        """Returns the span of a turn without white space after its end-of-turn token."""
        start, end = span
        trimmed = start + len(self._text[start:end].rstrip())
        return (start, trimmed) if self._text[start:trimmed].endswith(self._special) else span

    def unknown(self, number: int) -> DataError:
        """Returns the error for message `number` (an index), whose span cannot be determined."""
        return DataError(
            f"message {number + 1} of {self._where}: the assistant's text cannot be found in the conversation, because"
            f" the chat template {self._template.name} renders it in another way once other messages follow. Mark it in"
            " the template with {% generation %} blocks (--chat-template FILE), or learn all tokens with --loss-on all"
        )
