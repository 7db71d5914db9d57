"""Turns a GGUF file into a folder that transformers reads at once, and keeps it in the user's cache.

Dequantizing SmolLM2-135M takes 15-19 s every time, reading the result 0.4 s. Knows nothing of tasks or training.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import struct
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from frostline.errors import ModelError

from .gguf_header import count_elements
from .location import ModelLocation
from .startup import quick_imports, quiet_transformers


def cache_folder() -> Path:
    """`$XDG_CACHE_HOME/frostline/gguf`, by default `~/.cache/frostline/gguf`."""
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "frostline" / "gguf"


def converted_folder(location: ModelLocation, say: Callable[[str], None] = lambda line: None) -> Path:
    """The folder with the dequantized float32 model of a GGUF file; converts on the first call and says so.

    The folder's name is the SHA-256 of the file and the version of transformers that converted it. Safe when two
    processes convert at once: each writes aside, the first to finish publishes.

    Raises:
        ModelError: the file cannot be read, or its architecture is not supported.
    """
    import transformers

    file = location.path
    assert file is not None
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    final = cache_folder() / f"{digest[:32]}-transformers-{transformers.__version__}"
    if (final / "config.json").is_file():
        return final
    num_elements = count_elements(file)
    size = "" if num_elements is None else f"about {num_elements * 4 / 1e6:,.0f} MB, "
    say(f"converting {file.name} to float32 safetensors, once ({size}10-20 s for a small model); kept in {final}")
    final.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=".tmp-", dir=final.parent))
    try:
        _convert(location, file, aside)
        try:
            aside.rename(final)
        except OSError:
            if not (final / "config.json").is_file():  # another process published the same model first
                raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return final


@contextmanager
def _no_bar() -> Iterator[None]:
    """Inside, the conversion draws no progress bar: it calls tqdm itself, past the switch of transformers."""
    from transformers import modeling_gguf_pytorch_utils as conversion

    drawn: Any = conversion.tqdm
    conversion.tqdm = partial(drawn, disable=True)  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield
    finally:
        conversion.tqdm = drawn


def _convert(location: ModelLocation, file: Path, target: Path) -> None:
    import importlib.util

    if importlib.util.find_spec("gguf") is None:
        raise ModelError(
            f"reading {file.name} needs the Python package gguf, which is not installed",
            where=location.where,
            fix="pip install gguf",
            possible="models in safetensors need no further package",
        )
    with quick_imports():
        import transformers
        from transformers import AutoModelForCausalLM, AutoTokenizer
    try:
        with quiet_transformers(), _no_bar():
            # Releases that have this class keep a model quantized without it, and save_pretrained refuses that.
            gguf_config: Any = getattr(transformers, "GgufConfig", None)
            options = {} if gguf_config is None else {"quantization_config": gguf_config(dequantize=True)}
            model = AutoModelForCausalLM.from_pretrained(str(file.parent), gguf_file=file.name, **options)
            tokenizer = AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name)
            model.save_pretrained(target)
            tokenizer.save_pretrained(target)
    except (ValueError, KeyError, IndexError, struct.error, NotImplementedError, RuntimeError, OSError) as error:
        raise ModelError(
            f"GGUF file {file.name} cannot be converted: {error}",
            where=location.where,
            possible="GGUF architectures that transformers reads (llama, qwen2, mistral, gemma2, phi3, ...)",
            fix="copy or download it again if it is truncated, or use the original safetensors model",
        ) from error
