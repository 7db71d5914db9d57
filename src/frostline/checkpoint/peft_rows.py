"""Trained rows in Hugging Face peft's layout, both ways: `trainable_token_indices` and the tensor that goes with it.

Reproduces peft 0.21's rules, so that peft itself is not needed (tests hold them against the real library):

    key      base_model.model.<module>.token_adapter.trainable_tokens_delta, once for a tied weight
    config   a list: rows of the input embedding; a mapping: rows by the end of a module's path, at a dot or not
    ties     followed from the input embedding alone, where the model's config says `tie_word_embeddings`
    linears  without bias, which peft leaves out
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from frostline.adapters import LaidRows
from frostline.checkpoint.peft_matching import PREFIX
from frostline.tree import unwrap

_KEY = ".token_adapter.trainable_tokens_delta"
CONFIG_KEY = "trainable_token_indices"


@dataclass(frozen=True)
class RowsLayout:
    """How trained rows look in peft.

    Attributes:
        keys: key in the file by canonical path.
        config: value of `trainable_token_indices`; None where there is nothing.
        inexpressible: reason by path, for what peft would compute otherwise.
    """

    keys: Mapping[str, str]
    config: list[int] | dict[str, list[int]] | None
    inexpressible: Mapping[str, str]


def rows_key(path: str) -> str:
    """Key in the file of the trained rows at canonical `path`."""
    return f"{PREFIX}{path.rpartition('.')[0]}{_KEY}"


def lay_out_rows(model: nn.Module, laid: Mapping[str, LaidRows], modules: Collection[str]) -> RowsLayout:
    """Lay out the trained rows of `model` for peft.

    Args:
        laid: by canonical path.
        modules: every path of a module of the base.
    """
    bare = unwrap(model)
    reasons = {path: reason for path, entry in laid.items() if (reason := _obstacle(bare, entry, modules))}
    good = {path: entry for path, entry in laid.items() if path not in reasons}
    named = {path.rpartition(".")[0]: list(entry.rows) for path, entry in good.items()}
    config: list[int] | dict[str, list[int]] | None = named or None
    if len(good) == 1 and _holds(next(iter(good.values())), _input_embedding(bare)):
        config = next(iter(named.values()))
    return RowsLayout({path: rows_key(path) for path in good}, config, reasons)


def rows_in(config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    """Indices by path of the module for the trained rows in a file, in the order of the tensor's rows.

    Raises:
        ValueError: the config does not say which rows a tensor holds, or not as many.
    """
    said: Any = config.get(CONFIG_KEY)
    found: dict[str, tuple[int, ...]] = {}
    for key, tensor in tensors.items():
        if not is_rows_key(key):
            continue
        path = key.removeprefix(PREFIX).removesuffix(_KEY)
        indices: Any = said
        if isinstance(said, Mapping):
            by_name = cast("Mapping[str, Any]", said)
            ends = [name for name in by_name if path.endswith(name)]
            indices = by_name[max(ends, key=len)] if ends else None
        if not isinstance(indices, Sequence) or not all(type(item) is int for item in cast("Sequence[Any]", indices)):
            raise ValueError(f"it does not say which rows {key} holds")
        rows = tuple(cast("Sequence[int]", indices))
        if len(set(rows)) != len(rows) or min(rows, default=0) < 0 or tensor.dim() != 2 or len(rows) != len(tensor):
            raise ValueError(f"{key} has shape {list(tensor.shape)}, {CONFIG_KEY} names {len(set(rows))} rows for it")
        found[path] = rows
    return found


def is_rows_key(key: str) -> bool:
    """Whether the tensor called `key` in a file holds trained rows."""
    return key.endswith(_KEY)


def in_order(tensor: Tensor, rows: Sequence[int]) -> Tensor:
    """The rows of `tensor`, which stand for `rows`, by rising index."""
    return tensor[torch.tensor(sorted(range(len(rows)), key=lambda place: rows[place]))]


def _obstacle(model: nn.Module, entry: LaidRows, modules: Collection[str]) -> str | None:
    """Why peft would not compute the same with these rows."""
    paths = list(entry.modules)
    if len(entry.unique_modules) < len(paths):
        return f"{', '.join(paths)} are one module, of which peft adapts one name"
    for path, module in entry.modules.items():
        base = cast("Any", module).frostline_base_class
        if isinstance(module, nn.Linear) and (module.bias is not None or base.forward is not nn.Linear.forward):
            what = "bias" if module.bias is not None else "own forward"
            return f"peft leaves out the {what} of the linear {path} ({base.__name__})"
        scaled = isinstance(getattr(module, "embed_scale", None), Tensor)
        if isinstance(module, nn.Embedding) and base.forward is not nn.Embedding.forward and not scaled:
            return f"peft leaves out the forward of {path} ({base.__name__})"
    name = paths[0]
    taken = sorted(path for path in modules if path.endswith(name) and path != name)
    if not name or taken:
        return f"peft has no name for {name or 'the root'} alone: it would also take {', '.join(taken)}"
    if _holds(entry, _input_embedding(model)):
        tied = {name, *_tied_with(model, paths)}
        if tied != set(paths):
            return f"peft ties {', '.join(sorted(tied))}, in the model {', '.join(sorted(paths))} are tied"
    elif len(paths) > 1:
        return f"peft ties nothing to {name}, which is not the model's input embedding; here it is {paths[1]} as well"
    return None


def _holds(entry: LaidRows, module: nn.Module | None) -> bool:
    return module is not None and any(module is held for held in entry.modules.values())


def _input_embedding(model: nn.Module) -> nn.Module | None:
    getter: Any = getattr(model, "get_input_embeddings", None)
    try:
        found = getter() if callable(getter) else None
    except NotImplementedError:  # transformers' answer for models that have none
        return None
    return found if isinstance(found, nn.Module) else None


def is_tied_so(model: nn.Module, path: str, names: Collection[str]) -> bool:
    """Whether peft lays rows that a file has for module `path` over all modules `names` that share the weight.

    Only of the input embedding does it follow ties.
    """
    bare = unwrap(model)
    embedding = _input_embedding(bare)
    if set(names) == {path}:
        return True
    return (
        embedding is not None
        and embedding is bare.get_submodule(path)
        and {path, *_tied_with(bare, names)} == set(names)
    )


def _tied_with(model: nn.Module, names: Collection[str]) -> set[str]:
    """Paths of the modules to which peft ties the input embedding, which has these `names`."""
    if not getattr(getattr(model, "config", None), "tie_word_embeddings", False):
        return set()
    sources = {f"{path}.weight" for path in names}
    found: set[str] = set()
    for prefix, module in model.named_modules():
        keys: Any = getattr(module, "_tied_weights_keys", None)
        start = f"{prefix}." if prefix else ""
        if isinstance(keys, Mapping):
            pairs = cast("Mapping[str, str]", keys).items()
            found |= {start + target for target, source in pairs if start + source in sources}
        elif keys and not prefix:
            found |= set(cast("Sequence[str]", keys))
    return {target.removesuffix(".weight") for target in found if target.endswith(".weight")}
