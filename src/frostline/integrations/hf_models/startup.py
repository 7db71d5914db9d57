"""Makes importing Hugging Face modelling code quick and quiet, without changing what it does.

Must not know of models, configs or recipes. Measured with `python -X importtime` (transformers 5.24, torch 2.13):
importing `transformers.models.bert.modeling_bert` costs 1.8-2.1 s, of which the model file itself is 0.03 s. The rest
is `torch._dynamo` (0.9 s with sympy; imported by decorators in transformers' masking, kernel and cache files),
`torch.distributed.tensor`, `fsdp` and `checkpoint` (0.4 s; its sharding code) and `scipy.optimize` (0.37 s; one
function of the object-detection losses, which no text model calls). The first two run at import time and cannot be
deferred without changing meaning; scipy can. Pausing the cyclic garbage collector saves another 0.4 s of the same
import: it would walk hundreds of thousands of live objects again and again and find nothing to free.
"""

from __future__ import annotations

import gc
import importlib
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from . import planning

_DEFERRED = "scipy.optimize"


@contextmanager
def quick_imports() -> Iterator[None]:
    """Inside, the garbage collector is paused and `scipy.optimize` is imported on first use instead of at once."""
    collecting = gc.isenabled()
    gc.disable()
    stand_in = _deferred_scipy() if _DEFERRED not in sys.modules else None
    if stand_in is not None:
        sys.modules[_DEFERRED] = stand_in
    try:
        with planning.light_imports():
            yield
    finally:
        if stand_in is not None and sys.modules.get(_DEFERRED) is stand_in:
            del sys.modules[_DEFERRED]
        if collecting:
            gc.enable()


def _deferred_scipy() -> ModuleType:
    module = ModuleType(_DEFERRED)

    def linear_sum_assignment(*arguments: Any, **keywords: Any) -> Any:
        return _real_scipy(module).linear_sum_assignment(*arguments, **keywords)

    def other_name(name: str) -> Any:
        if name.startswith("__"):  # asked for by the import system itself
            raise AttributeError(name)
        return getattr(_real_scipy(module), name)

    module.linear_sum_assignment = linear_sum_assignment  # type: ignore[attr-defined]
    module.__getattr__ = other_name  # type: ignore[method-assign]
    return module


def _real_scipy(stand_in: ModuleType) -> ModuleType:
    if sys.modules.get(_DEFERRED) is stand_in:
        del sys.modules[_DEFERRED]
    return importlib.import_module(_DEFERRED)


@contextmanager
def importing_model_code() -> Iterator[None]:
    """Imports what all models share in a second thread, while the body does something else; waits at the end.

    Meant for encoding data: tokenizers work outside Python's global lock, so that a second core does the importing
    (1.0 s of `frostline plan`). The body must not be in the middle of an import itself.

    Raises:
        ImportError: what the import raised.
    """
    failures: list[ImportError] = []

    def run() -> None:
        try:
            with quick_imports():
                importlib.import_module("transformers.modeling_utils")
        except ImportError as error:
            failures.append(error)

    thread = threading.Thread(target=run, name="frostline-imports", daemon=True)
    thread.start()
    try:
        yield
    finally:
        thread.join()
    if failures:
        raise failures[0]


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silences transformers' load report and progress bars inside: Frostline reports the same facts itself."""
    from transformers.utils import logging as hf_logging

    verbosity = hf_logging.get_verbosity()
    bars = hf_logging.is_progress_bar_enabled()
    hf_logging.set_verbosity_error()
    hf_logging.disable_progress_bar()
    try:
        yield
    finally:
        hf_logging.set_verbosity(verbosity)
        if bars:
            hf_logging.enable_progress_bar()
