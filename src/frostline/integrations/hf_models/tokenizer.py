"""Loads the tokenizer that belongs to a model, with a padding token and the chat template that the config asks for.

Knows nothing of data or of models' weights.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from frostline.config.origin import Origin
from frostline.errors import ModelError

from .hub import local_folder
from .location import ModelLocation, resolve_location
from .startup import quick_imports, quiet_transformers

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class TokenizerSettings(Protocol):
    """What is read of `config.tokenizer`."""

    @property
    def name_or_path(self) -> str | None: ...
    @property
    def chat_template(self) -> str | None: ...


def load_tokenizer(
    location: ModelLocation,
    settings: TokenizerSettings | None = None,
    *,
    trust_remote_code: bool = False,
    origin: Origin | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> PreTrainedTokenizerBase:
    """The model's tokenizer, or the one that `settings` names.

    A tokenizer without a padding token pads with its end-of-sequence token (padding is masked, the model never sees
    it); no token is added, so no embedding has to grow.

    Raises:
        ModelError: there are no tokenizer files, they cannot be read, or the chat template cannot.
    """
    if settings is not None and settings.name_or_path:
        location = resolve_location(settings.name_or_path, origin)
    folder = local_folder(location, weights=False, say=say)
    with quick_imports():
        from transformers import AutoTokenizer
    try:
        with quiet_transformers():
            tokenizer = AutoTokenizer.from_pretrained(str(folder.path), trust_remote_code=trust_remote_code)
    except (ValueError, OSError, KeyError, ImportError, TypeError) as error:
        raise _no_tokenizer(location, str(error).strip().split("\n")[0]) from error
    # Without files some architectures get a tokenizer that knows its special tokens and not one word.
    if len(tokenizer) <= len(tokenizer.all_special_tokens):
        raise _no_tokenizer(location, "its vocabulary is empty")
    if settings is not None and settings.chat_template:
        tokenizer.chat_template = _read_template(settings.chat_template)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token
    return tokenizer


def _no_tokenizer(location: ModelLocation, why: str) -> ModelError:
    return ModelError(
        f"no tokenizer can be loaded for model {location.name!r}: {why}",
        where=location.where,
        possible="tokenizer.json with tokenizer_config.json, or the vocabulary files of the architecture",
        fix="put the tokenizer files into the model's folder, or set tokenizer.name_or_path",
    )


def _read_template(text: str) -> str:
    """A file's content, or the text itself when it is a template."""
    if "{{" in text or "{%" in text:
        return text
    path = Path(text).expanduser()
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(
            f"chat template {text!r} is neither a template nor a readable file: {error}",
            where="tokenizer.chat_template",
            possible="a path to a .jinja file, or the template itself (with {{ }} or {% %})",
            fix="correct the path; a relative path starts at the current directory",
        ) from None
