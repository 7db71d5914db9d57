"""Loads a Hugging Face model with its weights, and proves that what is new is what the plan was told.

Knows nothing of freezing, adapters or data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from frostline.errors import ModelError

from .build import Head, MetaModel, ModelSettings, describe, from_pretrained, read_config, resolve_dtype, source_files
from .headers import read_headers, weight_files
from .hub import local_folder
from .location import ModelLocation


@dataclass(frozen=True)
class LoadedModel:
    """A model with its weights on the CPU, in eval mode.

    Attributes:
        model: ready for `frostline.prepare`.
        new: paths of the parameters that the base files do not hold; drawn from `seed`.
        files: the weight files as the user has them; the base is fingerprinted by them.
        notes: what a user should know about the fit of files and model.
        dtype: of the parameters.
    """

    model: nn.Module
    new: frozenset[str]
    files: list[Path]
    notes: list[str]
    dtype: torch.dtype


def load_model(
    location: ModelLocation,
    settings: ModelSettings,
    head: Head,
    *,
    seed: int = 0,
    expected: MetaModel | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> LoadedModel:
    """Loads the model on the CPU.

    Args:
        location: from `resolve_location`.
        settings: `config.model`.
        head: what stands on top.
        seed: new parameters are drawn from it; the global random state is left as it was.
        expected: the meta model that the plan was made with; its new parameters must be those of this load.
        say: is told of slow work before it starts.

    Raises:
        ModelError: as `build_meta`, and when the new parameters are not those of `expected`, or a value is not finite.
    """
    folder = local_folder(location, say=say)
    files = weight_files(folder)
    headers = read_headers(files, location.where)
    config = read_config(folder, settings, head)
    dtype = resolve_dtype(settings.dtype, headers)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model, info = from_pretrained(folder, settings, head, config, dtype=dtype)
    meta = describe(model, info, location, headers, dtype, head)
    if expected is not None and expected.new != meta.new:
        more, less = sorted(meta.new - expected.new), sorted(expected.new - meta.new)
        raise ModelError(
            f"the load of model {location.name!r} left other parameters new than the plan was made with:"
            f" also {more}, not {less}",
            where=location.where,
            fix="the files changed while Frostline ran: start again",
            possible="the same files for the plan and for the load",
        )
    _check_materialized(model, location)
    return LoadedModel(model.eval(), meta.new, source_files(location, folder), meta.notes, dtype)


def _check_materialized(model: nn.Module, location: ModelLocation) -> None:
    left = [name for name, tensor in [*model.named_parameters(), *model.named_buffers()] if tensor.is_meta]
    if left:
        raise ModelError(
            f"{len(left)} tensors of model {location.name!r} got no values: {', '.join(left[:5])}",
            where=location.where,
            fix="the installed transformers loads this model incompletely: try another version of it",
            possible="a model whose tensors are all in its files, or new",
        )
