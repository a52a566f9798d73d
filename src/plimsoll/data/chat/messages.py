"""Checks roles and content of messages for a chat template, and joins the text parts of a message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from plimsoll.errors import DataError

ROLES = ("system", "developer", "user", "assistant", "tool", "function", "ipython")
"""Roles that known chat templates use. A model's template decides on their order."""
FIRST = ("system", "developer")
"""Roles that only the first message may have."""
_REASONING = ("reasoning_content", "thinking", "reasoning")
"""Keys under which records store a message's reasoning. Most templates read the first key, some the second."""


def checked_messages(given: Any, where: str, *, column: str = "messages") -> list[dict[str, Any]]:
    """Returns the messages for a chat template, without keys whose value is null.

    Args:
        given: Value of the record's column.
        where: Name of the record in error messages.
        column: Name of the column.

    Raises:
        DataError: The value is not a list of objects or is empty, or a message has an unknown or misplaced role, or
            content that is not text.
    """
    if not isinstance(given, Sequence) or isinstance(given, str) or not given:
        content = f"holds a {type(given).__name__}" if given else "is empty"
        raise DataError(
            f"{column} of {where} {content}: a list of at least one message was expected, like"
            ' [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]'
        )
    return [_checked(message, number, f"message {number} of {where}") for number, message in enumerate(given, 1)]


def _checked(given: Any, number: int, where: str) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise DataError(f"{where} is a {type(given).__name__}: an object with role and content was expected")
    message = {name: value for name, value in given.items() if value is not None}
    role = message.get("role")
    if role not in ROLES:
        raise DataError(f"{where} has the role {role!r}, which is none of {', '.join(ROLES)}: correct its role")
    if role in FIRST and number > 1:
        raise DataError(
            f"{where} has the role {role!r}, which only the first message may have: move its text there, or into the"
            " user's message"
        )
    if "content" in message:
        message["content"] = _text(message["content"], where)
    elif "tool_calls" not in message:
        raise DataError(f"{where} has no content (null): write its text, or leave the record out")
    reasoning = next((message[name] for name in _REASONING if name in message), None)
    if reasoning is not None:
        message = {"thinking": reasoning, **message, "reasoning_content": reasoning}
    return message


def _text(content: Any, where: str) -> str:
    """Returns the text of a message. Concatenates the parts if its content is a list."""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise DataError(f"content of {where} is a {type(content).__name__}: text was expected")
    parts = [part if isinstance(part, Mapping) else {"text": part} for part in content]
    for part in parts:
        kind = part.get("type", "text")
        if kind != "text" or not isinstance(part.get("text"), str):
            raise DataError(
                f"content of {where} has a part of the type {kind!r}: models are tuned on text alone here. Leave the"
                " record out, or describe the part in words"
            )
    return "".join(part["text"] for part in parts)
