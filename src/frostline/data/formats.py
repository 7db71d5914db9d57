"""Formats: which columns mean what, and prompt/completion pairs as messages.

Knows columns and their values, not tokens or files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, cast

from frostline.config.origin import Origin
from frostline.data.rows import Rows, missing_column, place
from frostline.errors import DataError

Format = Literal["messages", "prompt_completion", "text"]
Message = dict[str, Any]


class ColumnNames(Protocol):
    """What `data.columns` of a config gives: the user's column names, None where the default name is meant."""

    @property
    def text(self) -> str | None: ...
    @property
    def text_pair(self) -> str | None: ...
    @property
    def label(self) -> str | None: ...
    @property
    def messages(self) -> str | None: ...
    @property
    def prompt(self) -> str | None: ...
    @property
    def completion(self) -> str | None: ...


@dataclass(frozen=True)
class Columns:
    """Column names given in Python; the default names are those of the fields."""

    text: str | None = None
    text_pair: str | None = None
    label: str | None = None
    messages: str | None = None
    prompt: str | None = None
    completion: str | None = None


@dataclass(frozen=True)
class ClassificationColumns:
    """The columns found in the data. `label` is None where labels were not required (prediction)."""

    text: str
    text_pair: str | None
    label: str | None

    @property
    def keys(self) -> tuple[str, ...]:
        """What the model reads: the key for duplicates."""
        return (self.text,) if self.text_pair is None else (self.text, self.text_pair)


def classification_columns(
    rows: Rows, names: ColumnNames | None = None, origin: Origin | None = None, *, need_label: bool = True
) -> ClassificationColumns:
    """Columns of a classification source: `text`, `label` and, when it is there, `text_pair`, unless named otherwise.

    Raises:
        DataError: a column is not there; lists the columns there are.
    """
    names = names or Columns()
    text = _find(rows, names.text, "text", origin)
    pair = names.text_pair or ("text_pair" if "text_pair" in rows.columns else None)
    if pair is not None:
        _find(rows, pair, "text_pair", origin)
    label = names.label or "label"
    if need_label or names.label in rows.columns:
        return ClassificationColumns(text, pair, _find(rows, label, "label", origin))
    return ClassificationColumns(text, pair, label if label in rows.columns else None)


def _find(rows: Rows, name: str | None, default: str, origin: Origin | None) -> str:
    name = name or default
    if name not in rows.columns:
        raise missing_column(rows, name, origin, use=default)
    return name


def detect_format(
    columns: Sequence[str],
    names: ColumnNames | None = None,
    origin: Origin | None = None,
    source: str = "the data",
) -> Format:
    """Format by the columns there are: `messages` before `prompt` + `completion` before `text`.

    A name given in `data.columns` decides first, so that a data set with several of them can be read either way.

    Raises:
        DataError: none of the formats fits; lists the columns.
    """
    names = names or Columns()
    if names.messages:
        return "messages"
    if names.prompt or names.completion:
        return "prompt_completion"
    if names.text:
        return "text"
    if "messages" in columns:
        return "messages"
    if "prompt" in columns and "completion" in columns:
        return "prompt_completion"
    if "text" in columns:
        return "text"
    raise DataError(
        f"{source} has no column that shows its format",
        where=place(source, origin),
        possible=f"columns: {', '.join(columns) or 'none'}\n"
        "formats: messages (a list of {role, content}), prompt + completion, or text",
        fix="name the columns, as `data.columns: {prompt: question, completion: answer}`",
    )


def key_columns(
    rows: Rows, format: Format, names: ColumnNames | None = None, origin: Origin | None = None
) -> list[str]:
    """The columns of a causal-LM source in `format`, checked to be there; also the key for duplicates."""
    names = names or Columns()
    if format == "messages":
        return [_find(rows, names.messages, "messages", origin)]
    if format == "text":
        return [_find(rows, names.text, "text", origin)]
    return [_find(rows, names.prompt, "prompt", origin), _find(rows, names.completion, "completion", origin)]


def to_messages(
    rows: Rows, format: Format, names: ColumnNames | None = None, origin: Origin | None = None
) -> list[list[Message]]:
    """Conversations of a source in the format `messages` or `prompt_completion`, each checked.

    A prompt or completion may itself be a list of messages; as text they are the user's and the assistant's turn.

    Raises:
        DataError: a value is no conversation; names the example.
    """
    keys = key_columns(rows, format, names, origin)
    if format == "messages":
        values = rows.column(keys[0])
        return [_check(value, f"{rows.place_of(i)}: {keys[0]}", rows, origin) for i, value in enumerate(values)]
    conversations: list[list[Message]] = []
    for i, (prompt, completion) in enumerate(zip(rows.column(keys[0]), rows.column(keys[1]), strict=True)):
        turns = _turns(prompt, "user", f"{rows.place_of(i)}: {keys[0]}", rows, origin)
        turns += _turns(completion, "assistant", f"{rows.place_of(i)}: {keys[1]}", rows, origin)
        conversations.append(turns)
    return conversations


def _turns(value: object, role: str, position: str, rows: Rows, origin: Origin | None) -> list[Message]:
    if isinstance(value, str):
        return [{"role": role, "content": value}]
    return _check(value, position, rows, origin)


def _check(value: object, position: str, rows: Rows, origin: Origin | None) -> list[Message]:
    if not isinstance(value, list) or not value:
        raise _no_conversation(f"is {_kind(value)}", position, rows, origin)
    messages: list[Message] = []
    for number, item in enumerate(cast(list[object], value)):
        if not isinstance(item, dict):
            raise _no_conversation(f"has {_kind(item)} as message {number}", position, rows, origin)
        # tables fill keys that only some messages have with None
        message = {k: v for k, v in cast(dict[str, Any], item).items() if v is not None}
        if not isinstance(message.get("role"), str):
            raise _no_conversation(f"has no role in message {number}", position, rows, origin)
        if not isinstance(message.get("content"), str) and "tool_calls" not in message:
            content = _kind(message.get("content"))
            raise _no_conversation(f"has {content} as content of message {number}", position, rows, origin)
        messages.append(message)
    return messages


def _no_conversation(what: str, position: str, rows: Rows, origin: Origin | None) -> DataError:
    return DataError(
        f"{position} {what}",
        where=place(rows.source, origin),
        possible='a list of messages, as [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]',
        fix="correct that example, or remove it",
    )


def _kind(value: object) -> str:
    if value is None:
        return "nothing"
    return "an empty list" if value == [] else f"a {type(value).__name__}"
