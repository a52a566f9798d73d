"""Characters of a rendered conversation that the assistant writes: what a model is to learn.

A template with `{% generation %}` blocks says it. Of others, a message begins where the conversation before it ends,
rendered with the beginning of the assistant's turn (`add_generation_prompt`), and ends where the conversation up to it
ends. Both have to be beginnings of the whole conversation. A template that writes an earlier turn in another way once
others follow (Qwen3's and DeepSeek-R1's leave its thinking out) breaks that: such a turn is found by rendering the
whole conversation again with a mark for the message's content, before and after which nothing may differ.

An end-of-turn token is the assistant's, white space after it is not.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import Any

from plimsoll.data.chat.template import ChatTemplate, Rendered, Span
from plimsoll.errors import DataError

_MARK = "\ue000plimsoll\ue001"
"""Content that no message has: characters for private use."""


def assistant_spans(
    template: ChatTemplate,
    messages: Sequence[Mapping[str, Any]],
    *,
    first: int = 0,
    tools: Any = None,
    special: Collection[str],
    where: str,
) -> Rendered:
    """Returns the conversation as text, with the characters of the assistant's messages from message `first` on.

    Args:
        template: The template.
        messages: From `messages.checked_messages`.
        first: Messages before it are not to be learned: those of a prompt.
        tools: As `ChatTemplate.render` takes them.
        special: Spelling of the tokens of which one may end a turn.
        where: The record, for refusals.

    Raises:
        DataError: The template fails, or a message cannot be told from what surrounds it.
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
    """Returns those generation blocks that are of messages from `first` on."""
    if first and len(spans) != len(numbers):
        raise DataError(
            f"{where} has {len(numbers)} messages of the assistant, and the chat template {template.name} marks"
            f" {len(spans)} as generated: which of them are of the completion cannot be told. Use `messages` instead"
        )
    return [span for span, number in zip(spans, numbers, strict=True) if number >= first] if first else spans


class _Turns:
    """The messages of a conversation, each to be found in what the template made of all of them."""

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
        """Returns the characters of the assistant's message `number`."""
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
        """Returns what ends a turn, from what follows it as the last and before others; None where neither tells.

        A template may write more after the last turn, as Phi-3's writes an end-of-text: then it is the token that
        ends both.
        """
        if after.startswith(last):
            return last
        same = next((place for place, pair in enumerate(zip(last, after, strict=False)) if len(set(pair)) > 1), None)
        common = after[:same]
        ends = [common.find(token) + len(token) for token in self._special if token in common]
        return common[: min(ends)] if ends and "tool_calls" not in self._messages[number] else None

    def _part(self, messages: Sequence[Mapping[str, Any]], *, prompt: bool = False) -> str | None:
        """Returns a part of the conversation as text; None where the template takes the whole alone."""
        try:
            return self._template.render(messages, prompt=prompt, tools=self._tools, where=self._where).text
        except DataError:
            return None

    def without_space_after(self, span: Span) -> Span:
        """Returns a turn without the white space that follows the token which ends it."""
        start, end = span
        trimmed = start + len(self._text[start:end].rstrip())
        return (start, trimmed) if self._text[start:trimmed].endswith(self._special) else span

    def unknown(self, number: int) -> DataError:
        """Builds the refusal of a message whose text cannot be found."""
        return DataError(
            f"message {number + 1} of {self._where}: what the assistant wrote cannot be told from the rest of the"
            f" conversation, because the chat template {self._template.name} renders it in another way once other"
            " messages follow. Mark it in the template with {% generation %} blocks (--chat-template FILE), or learn"
            " all tokens with --loss-on all"
        )
