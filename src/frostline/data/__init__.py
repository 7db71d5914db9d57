"""Data: from a source named in a config to padded batches of token ids.

Light at import: the standard library only; no torch, transformers or datasets until a function that needs them is used.
Knows nothing of models, training or recipes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from frostline.data.formats import (
    ClassificationColumns,
    Columns,
    classification_columns,
    detect_format,
    key_columns,
    to_messages,
)
from frostline.data.labels import LabelMap
from frostline.data.rows import Rows
from frostline.data.sources import load_source

# imported here and now, so that `frostline.data.split` is the function and not the submodule
from frostline.data.split import count_conflicts, count_overlap, deduplicate, remove_overlap, split, take

if TYPE_CHECKING:
    from frostline.data.chat import Encoded, render_chat, render_chats
    from frostline.data.collate import EpochOrder, pad_batch
    from frostline.data.encode import DeferredData, EncodedData, EncodeStats, encode_causal_lm, encode_classification
    from frostline.data.preview import render_examples

_LAZY = {
    "DeferredData": "encode",
    "EncodeStats": "encode",
    "Encoded": "chat",
    "EncodedData": "encode",
    "EpochOrder": "collate",
    "encode_causal_lm": "encode",
    "encode_classification": "encode",
    "pad_batch": "collate",
    "render_chat": "chat",
    "render_chats": "chat",
    "render_examples": "preview",
}

__all__ = [
    "ClassificationColumns",
    "Columns",
    "DeferredData",
    "EncodeStats",
    "Encoded",
    "EncodedData",
    "EpochOrder",
    "LabelMap",
    "Rows",
    "classification_columns",
    "count_conflicts",
    "count_overlap",
    "deduplicate",
    "detect_format",
    "encode_causal_lm",
    "encode_classification",
    "key_columns",
    "load_source",
    "pad_batch",
    "remove_overlap",
    "render_chat",
    "render_chats",
    "render_examples",
    "split",
    "take",
    "to_messages",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
    globals()[name] = value
    return value
