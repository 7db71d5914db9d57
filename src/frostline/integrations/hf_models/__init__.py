"""Hugging Face models: where they are, what they look like without weights, loading them, their tokenizers.

Importing this package imports torch but not transformers; that happens on the first call that needs it.
"""

from .build import Head, MetaModel, build_meta, model_window, read_config
from .hub import local_folder
from .load import LoadedModel, load_model
from .location import ModelLocation, resolve_location
from .tokenizer import load_tokenizer

__all__ = [
    "Head",
    "LoadedModel",
    "MetaModel",
    "ModelLocation",
    "build_meta",
    "load_model",
    "load_tokenizer",
    "local_folder",
    "model_window",
    "read_config",
    "resolve_location",
]
