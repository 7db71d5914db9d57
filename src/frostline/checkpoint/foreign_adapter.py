"""What an adapter folder that peft itself wrote may hold and ours never does. Knows files and names, no plans."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import torch

from frostline.adapters import unmerged_weights
from frostline.checkpoint.adapter_file import WEIGHTS, AdapterFile
from frostline.checkpoint.peft_matching import PREFIX
from frostline.checkpoint.peft_rows import is_tied_so
from frostline.checkpoint.tensor_file import values_of
from frostline.checkpoint.values_of_files import same_numbers
from frostline.errors import AdapterError, CheckpointError
from frostline.tree import canonical_named_parameters, join_path


def without_base_copies(model: torch.nn.Module, file: AdapterFile) -> AdapterFile:
    """`file` without the base weights that peft saves beside an adapted embedding or output head.

    Raises:
        CheckpointError: one of them is not the weight that `model` has.
    """
    if file.base is not None:  # ours holds such a tensor only where it has trained
        return file
    values = values_of(model) | unmerged_weights(model)
    targets = set(file.targets)
    copies: set[str] = set()
    for key, stored in file.tensors.items():
        module, found, leaf = key.removeprefix(PREFIX).partition(".base_layer.")
        held = values.get(f"{module}.{leaf}")
        if not found or module not in targets or held is None:
            continue
        # Either may be the rounded one: the adapter was trained on a base in 16 bits, or the base is loaded in them.
        if stored.shape != held.shape or not (same_numbers(stored, held) or same_numbers(held, stored)):
            raise CheckpointError(
                f"the adapter belongs to another base: it holds a copy of {module}.{leaf}, which the model has "
                + (f"in shape {list(held.shape)}" if stored.shape != held.shape else "with other values"),
                where=file.directory / WEIGHTS,
                possible=f"the base that it was trained on, with {module}.{leaf} of shape {list(stored.shape)}",
                fix="load that base; if peft has trained this weight, too, load the adapter with peft",
            )
        copies.add(key)
    return replace(file, tensors={key: value for key, value in file.tensors.items() if key not in copies})


def require_tied_as_in(model: torch.nn.Module, file: AdapterFile) -> None:
    """Raise where peft has trained a copy of a tensor that `model` shares under several names, or rows of one name.

    peft's `modules_to_save` breaks the tie, and the other name keeps the old values: no tied model computes that. Of
    rows it follows the ties of the input embedding alone.

    Raises:
        AdapterError: names the tensor.
    """
    saved: Collection[str] = file.config.get("modules_to_save") or ()
    if not saved and not file.rows:
        return
    names: dict[int, list[str]] = {}
    parameters = dict(canonical_named_parameters(model))
    for name, parameter in parameters.items():
        names.setdefault(id(parameter), []).append(name)
    for path in file.rows:
        weight = parameters.get(join_path(path, "weight"))
        aliases = names[id(weight)] if weight is not None else []
        if aliases and not is_tied_so(model, path, [name.rpartition(".")[0] for name in aliases]):
            raise _trained_apart(
                file, f"rows of {path}", aliases, "trainable_token_indices of the input embedding alone"
            )
    for path in file.trained_in_full:
        aliases = names[id(parameters[path])] if path in parameters else []
        parts = path.split(".")
        owners = [".".join(parts[:end]) for end in range(1, len(parts))]
        if len(aliases) > 1 and any(owner.endswith(tuple(saved)) for owner in owners):
            raise _trained_apart(file, path, aliases, "modules_to_save without tied tensors")


def _trained_apart(file: AdapterFile, what: str, names: Collection[str], possible: str) -> AdapterError:
    return AdapterError(
        f"the adapter holds {what} trained apart, which in this model is tied: {', '.join(names)} are one tensor",
        where=file.directory / "adapter_config.json",
        possible=possible,
        fix="load the base untied (`tie_word_embeddings=False`), or load the adapter with peft",
    )
