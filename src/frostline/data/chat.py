"""Chat: a conversation as token ids, and which of them are trained.

The chat template belongs to the tokenizer and is not parsed here. Where it marks the assistant's text itself
(`{% generation %}`), that mark is used; otherwise the conversation is rendered up to each assistant turn, and each
such beginning must be a beginning of the whole. Knows nothing of files, batches or models.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from frostline.config.origin import Origin
from frostline.data.rows import PlaceOf, row_number
from frostline.errors import DataError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TrainOn = Literal["assistant", "last", "all"]
IGNORED = -100  # the label of a token that is not trained, as torch's cross entropy skips it
_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")
_CHUNK = 256  # conversations per call of the tokenizer, which works on a batch in parallel


@dataclass(frozen=True)
class Encoded:
    """One example: `input_ids` and `labels` of equal length; a label is the id itself or -100 (not trained).

    `num_bare` counts the assistant turns of which the template renders no text: nothing, or their end token alone, as
    of calls of a tool by a template that does not know them.
    """

    input_ids: list[int]
    labels: list[int]
    num_bare: int = 0


@dataclass(frozen=True)
class _Turn:
    """Texts that locate one assistant turn. `through` is None when the turn ends the conversation."""

    message: int
    before: str
    prompt: str
    through: str | None


def render_chat(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[dict[str, Any]],
    train_on: TrainOn = "assistant",
    system: str | None = None,
    origin: Origin | None = None,
) -> Encoded:
    """Token ids and labels of one conversation; see `render_chats`."""
    return next(render_chats(tokenizer, [messages], train_on, system, origin))


def render_chats(
    tokenizer: PreTrainedTokenizerBase,
    conversations: Sequence[Sequence[dict[str, Any]]],
    train_on: TrainOn = "assistant",
    system: str | None = None,
    origin: Origin | None = None,
    place_of: PlaceOf = row_number,
) -> Iterator[Encoded]:
    """Token ids and labels of conversations, in order.

    Args:
        train_on: "assistant" trains every assistant turn, "last" only the last one, "all" every token. A trained turn
            includes the token that ends it, so that the model learns to stop; not the header that opens it.
        system: system message for the conversations that do not begin with one of their own.
        place_of: where the conversation of an index stands, for messages.

    Raises:
        DataError: the tokenizer has no chat template, the template refuses a conversation, or it renders a
            conversation so that its turns cannot be located.
    """
    template = _template(tokenizer, origin)
    marks = train_on != "all" and _GENERATION.search(template) is not None
    opener = _turn_opener(tokenizer, origin) if marks else None
    if system is not None:
        _require_system(tokenizer, system, origin)
    for first in range(0, len(conversations), _CHUNK):
        chunk = [_with_system(messages, system) for messages in conversations[first : first + _CHUNK]]
        if marks:
            for number, messages in enumerate(chunk, start=first):
                yield _by_mark(tokenizer, messages, train_on, opener, place_of(number), origin)
        else:
            rows = [place_of(first + index) for index in range(len(chunk))]
            yield from _by_beginnings(tokenizer, chunk, train_on, rows, origin)


def _template(tokenizer: PreTrainedTokenizerBase, origin: Origin | None) -> str:
    if not getattr(tokenizer, "chat_template", None):
        raise DataError(
            f"the tokenizer of {tokenizer.name_or_path or 'this model'} has no chat template, so messages have no text",
            where=origin or "the conversations",
            possible="an instruction-tuned model, or a template file",
            fix="set `tokenizer.chat_template: FILE`, or use prompt/completion or text data",
        )
    return tokenizer.get_chat_template()


def _with_system(messages: Sequence[dict[str, Any]], system: str | None) -> list[dict[str, Any]]:
    if system is None or (messages and messages[0].get("role") == "system"):
        return list(messages)
    return [{"role": "system", "content": system}, *messages]


def _require_system(tokenizer: PreTrainedTokenizerBase, system: str, origin: Origin | None) -> None:
    probe = _with_system([{"role": "user", "content": "x"}], system)
    with rendering("data.system before a message of the user", origin):
        text = str(tokenizer.apply_chat_template(probe, tokenize=False, add_generation_prompt=True))
    if system.strip() not in text:
        raise DataError(
            "the chat template leaves system messages out, so data.system would have no effect",
            where=origin or "data.system",
            possible="a template that writes the content of a system message as it is",
            fix="remove `data.system`, write its text into the first message of the user, or set "
            "`tokenizer.chat_template`",
        )


def _by_mark(
    tokenizer: PreTrainedTokenizerBase,
    messages: list[dict[str, Any]],
    train_on: TrainOn,
    opener: int | None,
    row: str,
    origin: Origin | None,
) -> Encoded:
    with rendering(row, origin):
        encoded: Any = tokenizer.apply_chat_template(
            messages, tokenize=True, return_dict=True, return_assistant_tokens_mask=True
        )
    ids: list[int] = encoded["input_ids"]
    mask: list[int] = list(encoded["assistant_masks"])
    bos: Any = tokenizer.bos_token_id
    special = _special_ids(tokenizer) - {opener, bos}
    runs = _runs(mask)
    if not runs and any(message.get("role") == "assistant" for message in messages):
        raise DataError(
            f"the chat template marks no assistant text in {row}",
            where=origin or "the conversations",
            possible="{% generation %} ... {% endgeneration %} around the assistant's content",
            fix="correct the template, or remove the marks: turns are then located by rendering",
        )
    labels = [IGNORED] * len(ids)
    for start, end in runs[-1:] if train_on == "last" else runs:
        if end < len(ids) and ids[end - 1] not in special and ids[end] in special:
            end += 1  # templates often close the mark before the token that ends the turn
        labels[start:end] = ids[start:end]
    # A mark around nothing gives no run.
    num_answers = sum(message.get("role") == "assistant" for message in messages)
    num_bare = sum(not _has_text(tokenizer, ids[start:end], special) for start, end in runs)
    num_bare += max(0, num_answers - len(runs))
    return Encoded(ids, labels, num_bare if train_on == "assistant" else 0)


def _turn_opener(tokenizer: PreTrainedTokenizerBase, origin: Origin | None) -> int | None:
    """First token of the header that opens an assistant turn (None if the template writes none)."""
    probe = [{"role": "user", "content": "x"}]
    with rendering("a message of the user", origin):
        texts = [
            str(tokenizer.apply_chat_template(probe, tokenize=False, add_generation_prompt=add))
            for add in (False, True)
        ]
    without, with_header = _tokenize(tokenizer, texts)
    return with_header[len(without)] if len(with_header) > len(without) else None


def _special_ids(tokenizer: PreTrainedTokenizerBase) -> set[int | None]:
    """The named special tokens and those that were only added as special: often the one that ends a turn."""
    added: dict[int, Any] = tokenizer.added_tokens_decoder
    return {*tokenizer.all_special_ids, *(token for token, entry in added.items() if entry.special)}


def _runs(mask: Sequence[int]) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    start: int | None = None
    for position, value in enumerate([*mask, 0]):
        if value and start is None:
            start = position
        elif not value and start is not None:
            runs.append((start, position))
            start = None
    return runs


def _by_beginnings(
    tokenizer: PreTrainedTokenizerBase,
    chunk: list[list[dict[str, Any]]],
    train_on: TrainOn,
    rows: list[str],
    origin: Origin | None,
) -> Iterator[Encoded]:
    plans = [_plan(tokenizer, messages, train_on, row, origin) for row, messages in zip(rows, chunk, strict=True)]
    texts: list[str] = []
    for whole, turns in plans:
        texts.append(whole)
        for turn in turns:
            texts += [turn.prompt] if turn.through is None else [turn.prompt, turn.through]
    ids = iter(_tokenize(tokenizer, texts))
    special = _special_ids(tokenizer)
    for row, (_, turns) in zip(rows, plans, strict=True):
        whole_ids = next(ids)
        num_bare = 0
        labels = list(whole_ids) if train_on == "all" else [IGNORED] * len(whole_ids)
        for turn in turns:
            start = _start(tokenizer, whole_ids, next(ids), turn, row, origin)
            end = len(whole_ids)
            if turn.through is not None:
                through = next(ids)
                end = len(through)
                if whole_ids[:end] != through:
                    raise _not_a_beginning(row, turn.message, origin)
            end = _trim(tokenizer, whole_ids, start, end, special)
            labels[start:end] = whole_ids[start:end]
            num_bare += not _has_text(tokenizer, whole_ids[start:end], special)
        yield Encoded(whole_ids, labels, num_bare)


def _plan(
    tokenizer: PreTrainedTokenizerBase,
    messages: list[dict[str, Any]],
    train_on: TrainOn,
    row: str,
    origin: Origin | None,
) -> tuple[str, list[_Turn]]:
    def render(upto: int, header: bool = False) -> str:
        with rendering(row, origin):
            if upto == 0:  # many templates look at the first message, so that none cannot be rendered
                return _opening(tokenizer, whole, header)
            return str(tokenizer.apply_chat_template(messages[:upto], tokenize=False, add_generation_prompt=header))

    whole = render(len(messages))
    if train_on == "all":
        return whole, []
    indices = [i for i, message in enumerate(messages) if message.get("role") == "assistant"]
    turns: list[_Turn] = []
    for i in indices[-1:] if train_on == "last" else indices:
        through = None if i == len(messages) - 1 else render(i + 1)
        before, prompt = render(i), render(i, header=True)
        if prompt == before:
            prompt += _header(tokenizer, messages[:i], len(before), row, origin)
        turns.append(_Turn(i, before, prompt, through))
        if not whole.startswith(turns[-1].before) or not whole.startswith(through or ""):
            raise _not_a_beginning(row, i, origin)
    return whole, turns


def _header(
    tokenizer: PreTrainedTokenizerBase, messages: list[dict[str, Any]], start: int, row: str, origin: Origin | None
) -> str:
    """What a template that ignores `add_generation_prompt` writes before an answer: what two answers share."""
    with rendering(row, origin):
        one, other = (
            str(tokenizer.apply_chat_template([*messages, {"role": "assistant", "content": text}], tokenize=False))
            for text in ("x", "y")
        )
    same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one[start:], other[start:], strict=False))
    return "".join(character for character, _ in same)


def _opening(tokenizer: PreTrainedTokenizerBase, whole: str, header: bool) -> str:
    """What stands before the answer (or with `header` before its text) when the assistant speaks first.

    The header is what the template adds to a conversation for the assistant to go on; before it may stand a system
    message that the template brings itself.
    """
    probe = [{"role": "user", "content": "x"}]
    without, with_header = (
        str(tokenizer.apply_chat_template(probe, tokenize=False, add_generation_prompt=add)) for add in (False, True)
    )
    text = with_header.removeprefix(without)
    start = whole.find(text) if text else -1
    if start < 0:
        return ""
    return whole[: start + len(text)] if header else whole[:start]


def _start(
    tokenizer: PreTrainedTokenizerBase,
    whole: list[int],
    prompt: list[int],
    turn: _Turn,
    row: str,
    origin: Origin | None,
) -> int:
    """Where the assistant's own tokens begin: behind the header that a server would write at this point."""
    common = 0
    for ours, theirs in zip(whole, prompt, strict=False):
        if ours != theirs:
            break
        common += 1
    if common == len(prompt):
        return common
    # The header differs at its end: a template that opens with <think> only when generating, or a last space that
    # the tokenizer joins to the answer. What precedes the header must still be a beginning.
    before = _tokenize(tokenizer, [turn.before])[0]
    if common < len(before):
        raise _not_a_beginning(row, turn.message, origin)
    return common


def _trim(tokenizer: PreTrainedTokenizerBase, ids: list[int], start: int, end: int, special: set[int | None]) -> int:
    """Leave out the white space that templates write behind the token that ends a turn."""
    last = end
    while last > start and ids[last - 1] not in special:
        if str(tokenizer.decode([ids[last - 1]])).strip():
            return end
        last -= 1
    return last if last > start else end


def _has_text(tokenizer: PreTrainedTokenizerBase, ids: list[int], special: set[int | None]) -> bool:
    return any(token not in special and str(tokenizer.decode([token])).strip() for token in ids)


def _tokenize(tokenizer: PreTrainedTokenizerBase, texts: list[str]) -> list[list[int]]:
    # the template writes the special tokens itself; verbose=False: lengths are our business
    encoded: Any = tokenizer(texts, add_special_tokens=False, return_attention_mask=False, verbose=False)
    return [list(ids) for ids in encoded["input_ids"]]


@contextmanager
def rendering(what: str, origin: Origin | None) -> Iterator[None]:
    """Inside, what a template raises is a `DataError`: a refusal of its own, or its Python meeting another message.

    Args:
        what: what is rendered, to complete "the chat template cannot render".
    """
    from jinja2 import TemplateError

    try:
        yield
    except (TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
        raise DataError(
            f"the chat template cannot render {what}: {error}",
            where=origin or "the conversations",
            possible="what the template expects: often user and assistant in turn, a system message only at the start",
            fix="correct the example, or set `tokenizer.chat_template`",
        ) from error


def _not_a_beginning(row: str, message: int, origin: Origin | None) -> DataError:
    return DataError(
        f"the chat template renders the turns before message {message} of {row} differently when more "
        "follows, so the assistant's tokens cannot be located",
        where=origin or "the conversations",
        possible="train_on: last (only the last turn has to be located), or a template that marks the assistant's "
        "text with {% generation %}",
        fix="set `data.train_on: last`, or give such a template in `tokenizer.chat_template`",
    )
