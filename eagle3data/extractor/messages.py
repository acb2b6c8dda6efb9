"""Messages of a conversation, as source files hold them and as chat templates expect them."""

from __future__ import annotations

import json
from typing import Any

from eagle3data.schema.errors import Eagle3DataError

Message = dict[str, Any]

ROLES = ("system", "user", "assistant", "tool")
REASONING = ("reasoning_content", "reasoning", "thinking")
SHAREGPT_ROLES = {
    "system": "system",
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "tool": "tool",
    "observation": "tool",
}
_MEDIA = ("image", "images", "audio", "audios", "video", "videos")


class RowError(Eagle3DataError):
    """A row that can't be used; its text is the reason that the rejects file gives."""


def row_messages(row: dict[str, Any]) -> list[Message] | None:
    """The conversation of a row: `messages`, or ShareGPT's `conversations`; None without one.

    Raises:
        RowError: the messages can't be used, or the row holds images, audio or video.
    """
    if row.get("messages") is not None:
        messages = row["messages"]
    elif row.get("conversations") is not None:
        messages = _from_sharegpt(row["conversations"])
    else:
        return None
    media = [name for name in _MEDIA if row.get(name)]
    if media:
        raise RowError(f"the row holds {media[0]}: only text can be used")
    return normalise_messages(messages)


def _from_sharegpt(turns: Any) -> list[Any]:
    if not isinstance(turns, list):
        raise RowError("`conversations` is not a list")
    messages = []
    for at, turn in enumerate(turns):
        if not isinstance(turn, dict):
            raise RowError(f"message {at} is not an object")
        speaker = turn.get("from")
        if speaker not in SHAREGPT_ROLES:
            raise RowError(
                f"message {at}: unknown role {speaker!r}; known are {', '.join(SHAREGPT_ROLES)}"
            )
        messages.append({"role": SHAREGPT_ROLES[speaker], "content": turn.get("value")})
    return messages


def normalise_messages(value: Any) -> list[Message]:
    """Messages as templates expect them: known roles, text content, no empty fields.

    Text parts are joined; tool calls' arguments given as JSON text become objects.

    Raises:
        RowError: not a list of messages, an unknown role, content that isn't text.
    """
    if not isinstance(value, list) or not value:
        raise RowError("`messages` is not a list with messages in it")
    return [_normalise(message, at) for at, message in enumerate(value)]


def _normalise(message: Any, at: int) -> Message:
    if not isinstance(message, dict):
        raise RowError(f"message {at} is not an object")
    kept = {key: value for key, value in message.items() if value is not None}
    role = kept.get("role")
    if role not in ROLES:
        raise RowError(f"message {at}: unknown role {role!r}; known are {', '.join(ROLES)}")
    calls = kept.get("tool_calls") or []
    if "content" not in kept and not calls:
        raise RowError(f"message {at} ({role}) has no content")
    kept["content"] = _text(kept.get("content", ""), at)
    if calls:
        kept["tool_calls"] = [_normalise_call(call, at) for call in calls]
    else:
        kept.pop("tool_calls", None)
    return kept


def _text(content: Any, at: int) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise RowError(f"message {at}: content is {type(content).__name__}, expected text")
    parts = []
    for part in content:
        kind = part.get("type", "text") if isinstance(part, dict) else type(part).__name__
        if kind != "text" or not isinstance(part.get("text"), str):
            raise RowError(f"message {at} holds a part of type {kind}: only text can be used")
        parts.append(part["text"])
    return "".join(parts)


def _normalise_call(call: Any, at: int) -> dict[str, Any]:
    function = call.get("function", call) if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise RowError(f"message {at}: a tool call without a function name")
    arguments = function.get("arguments", {})
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except ValueError:
            raise RowError(f"message {at}: a tool call's arguments are not JSON") from None
    function = {**function, "arguments": arguments}
    return {"type": "function", **call, "function": function} if "function" in call else function


def reasoning(message: Message) -> str:
    """The reasoning that a message keeps apart from its content; empty where there is none."""
    return next((str(message[key]) for key in REASONING if message.get(key)), "")


def says_something(message: Message) -> bool:
    """Whether an assistant message holds anything that a model wrote."""
    return bool(message["content"].strip() or message.get("tool_calls") or reasoning(message))
