"""What `config.json` of a base says that changes what the model computes: the same weights compute otherwise with it.

Knows the file and its keys; nothing of models. Read from the file, not from a config object, whose defaults come and
go with the version of transformers.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

# Who wrote the file and with what, how the model is loaded and called, and the labels, which every run has of its own.
_FREE = frozenset(
    {"transformers_version", "torch_dtype", "dtype", "use_cache", "architectures"}
    | {"id2label", "label2id", "num_labels", "problem_type"}
)


def read_base_config(files: Iterable[Path]) -> dict[str, Any] | None:
    """The config beside the safetensors `files` of a base, without keys that do not change the model.

    None where there is none: GGUF holds its own among the bytes that are fingerprinted.
    """
    folder = next((file.parent for file in files if file.suffix == ".safetensors"), None)
    if folder is None:
        return None
    try:
        values = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):  # loading the model says what is wrong with it
        return None
    return _without_free(values) if isinstance(values, dict) else None  # pyright: ignore[reportUnknownArgumentType]


def config_changes(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Key, value then and value now of everything that differs, as text."""
    keys = sorted({*then, *now})
    return [(key, _text(then, key), _text(now, key)) for key in keys if _text(then, key) != _text(now, key)]


def _without_free(values: dict[str, Any]) -> dict[str, Any]:
    return {
        key: _without_free(cast("dict[str, Any]", value)) if isinstance(value, dict) else value
        for key, value in sorted(values.items())
        if key not in _FREE and not key.startswith("_")
    }


def _text(config: Mapping[str, Any], key: str) -> str:
    return json.dumps(config[key], sort_keys=True) if key in config else "not set"
