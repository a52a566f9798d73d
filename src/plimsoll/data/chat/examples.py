"""Converts records to examples: text, with the spans of characters whose tokens count in the loss."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from plimsoll.data.chat.messages import checked_messages
from plimsoll.data.chat.records import Record
from plimsoll.data.chat.tokenizer import ChatTokenizer, Example
from plimsoll.data.text.documents import is_held_out
from plimsoll.data.text.formats import encodable
from plimsoll.errors import DataError

LossOn = Literal["assistant", "all"]
"""Tokens that count in the loss: "assistant" for the assistant's messages and completions, "all" for all tokens."""


class Read(NamedTuple):
    """A record as an example."""

    example: Example | None
    """None if the record's text, or its prompt and completion, is only white space."""
    held_out: bool
    """True if the record is for validation, by a hash of its content."""


def read_example(record: Record, tokenizer: ChatTokenizer, loss_on: LossOn) -> Read:
    """Converts a record to an example. A hash of the record, not of the rendered text, selects validation examples.

    Raises:
        DataError: A column has another type than the record's kind requires, or the chat template fails.
    """
    columns, where = record.columns, record.where
    if record.kind == "text":
        text = _string(columns["text"], f"text of {where}")
        return Read(Example(text, None, False) if text.strip() else None, is_held_out(text))
    if record.kind == "messages":
        messages = checked_messages(columns["messages"], where)
        example = tokenizer.conversation(messages, learn_all=loss_on == "all", tools=_tools(record), where=where)
        return Read(example, _held_out(messages))
    prompt, completion = columns["prompt"], columns["completion"]
    if isinstance(prompt, str) != isinstance(completion, str):
        raise DataError(
            f"prompt of {where} is a {type(prompt).__name__} and its completion a {type(completion).__name__}: both"
            " have to be text, or both lists of messages"
        )
    if isinstance(prompt, str):
        prompt, completion = (_string(columns[name], f"{name} of {where}") for name in ("prompt", "completion"))
        text = prompt + completion
        spans = None if loss_on == "all" else [(len(prompt), len(text))]
        return Read(Example(text, spans, False) if text.strip() else None, is_held_out(text))
    first = checked_messages(prompt, where, column="prompt")
    messages = checked_messages([*first, *checked_messages(completion, where, column="completion")], where)
    example = tokenizer.conversation(
        messages, first=len(first), learn_all=loss_on == "all", tools=_tools(record), where=where
    )
    return Read(example, _held_out(messages))


def _held_out(messages: Sequence[Mapping[str, Any]]) -> bool:
    return is_held_out(json.dumps(messages, sort_keys=True))


def _tools(record: Record) -> Any:
    tools = record.columns.get("tools")
    if tools is not None and not isinstance(tools, list):
        raise DataError(
            f"tools of {record.where} is a {type(tools).__name__}: a list of objects was expected, the JSON schema of"
            " each function"
        )
    return tools or None


def _string(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise DataError(f"{what} is a {type(value).__name__}: text was expected")
    return encodable(value)
