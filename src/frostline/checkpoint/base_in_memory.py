"""Is the base in this model the one that a file was trained on? For models that come as objects, not from a config.

Two kinds of fingerprint can tell: of the files that the model names, or of the values in memory that stayed frozen.
They cannot be compared with each other, so the one that the file has decides which is made.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import torch

from frostline.adapters import unmerged_weights
from frostline.checkpoint.base_config import read_base_config
from frostline.checkpoint.fingerprint import BaseIdentity, fingerprint_files, fingerprint_model
from frostline.checkpoint.values_of_files import changed_since_loaded
from frostline.errors import CheckpointError, Problem
from frostline.trainability import TrainabilityPlan
from frostline.tree import ModuleTree, canonical_named_parameters, unwrap


def identity_of(model: torch.nn.Module) -> BaseIdentity | None:
    """Identity of the base that `model` was loaded from, with a fingerprint where it names a folder with safetensors.

    None where it names nothing.
    """
    name = _name_of(model)
    if name is None:
        return None
    files = _files_of(model)
    fingerprint = fingerprint_files(files) if files else None
    return BaseIdentity(name, fingerprint=fingerprint, dtype=_dtype_of(model), config=read_base_config(files))


def identity_to_save(model: torch.nn.Module, plan: TrainabilityPlan) -> BaseIdentity | None:
    """Identity of the base: by its files where the model names them and still is what they hold, else by its values.

    The values are those of all that stayed frozen.
    """
    identity = identity_of(model)
    paths = _base_without(model, plan.kept)
    by_files = identity is not None and identity.fingerprint is not None
    if by_files and changed_since_loaded(model, _files_of(model), paths, unmerged_weights(model)) is None:
        return identity
    if not paths:
        return identity
    fingerprint = fingerprint_model(model, paths, instead=unmerged_weights(model))
    identity = identity or BaseIdentity(_name_of(model), dtype=_dtype_of(model))
    return replace(identity, fingerprint=fingerprint)


def require_same_base(
    model: torch.nn.Module,
    saved: BaseIdentity | None,
    *,
    held: Collection[str],
    given: BaseIdentity | None,
    where: Path,
) -> None:
    """Raise unless the base in `model` is the one that `saved` names. Warns where that cannot be told.

    Args:
        saved: from a file; None and one without fingerprint ask for nothing.
        held: canonical paths that the file holds, which are no part of the base.
        given: identity of the base, where the caller knows it.

    Raises:
        CheckpointError: it is another base, or one that was changed in memory after it was loaded.
    """
    if saved is None:
        return
    told = given is not None and given.fingerprint_kind == saved.fingerprint_kind
    if given is None or not told:
        config = read_base_config(_files_of(model))
        identity = given or BaseIdentity(_name_of(model), dtype=_dtype_of(model), config=config)
        # One of the other kind is kept where none of the right kind can be made, and refused below.
        given = replace(identity, fingerprint=_fingerprint_like(model, saved, held) or identity.fingerprint)
    saved.check_same(given, where=where)
    if not told and saved.fingerprint_kind in ("sampled", "full"):
        _require_unchanged(model, held, where)
    if saved.fingerprint is not None and given.fingerprint is None:
        warnings.warn(str(_cannot_tell(model, saved, where)), stacklevel=3)


def _fingerprint_like(model: torch.nn.Module, saved: BaseIdentity, held: Collection[str]) -> str | None:
    """A fingerprint of the base in `model` of the kind that `saved` has; None where it cannot be made."""
    kind = saved.fingerprint_kind
    if kind in ("sampled", "full"):
        files = _files_of(model)
        return fingerprint_files(files, full=kind == "full") if files else None
    if kind in ("model-sampled", "model-full") and saved.dtype == _dtype_of(model):
        paths = _base_without(model, held)
        return fingerprint_model(model, paths, full=kind == "model-full", instead=unmerged_weights(model))
    return None


def _require_unchanged(model: torch.nn.Module, held: Collection[str], where: Path) -> None:
    """The files are the right ones; what was loaded from them may have been changed since."""
    files = _files_of(model)
    changed = changed_since_loaded(model, files, _base_without(model, held), unmerged_weights(model)) if files else None
    if changed is not None:
        raise CheckpointError(
            f"the model given is another base: {changed} in memory is not what {_name_of(model)} holds; it was changed "
            "after it was loaded, as a merge of this or another adapter does",
            where=where,
            possible="the base as its files hold it",
            fix="load the base again (what was merged counts already), or train on the changed model",
        )


def _cannot_tell(model: torch.nn.Module, saved: BaseIdentity, where: Path) -> Problem:
    if saved.fingerprint_kind in ("sampled", "full"):
        reason = "it is known by its files, and the model names no folder with safetensors"
        possible = "a model that was loaded from a folder: its `name_or_path` leads there"
    else:
        reason = f"it is known by its values in {saved.dtype}, and the model is in {_dtype_of(model)}"
        possible = f"a model in {saved.dtype}"
    name = saved.name_or_path or "the model that was trained"
    return Problem(
        f"the base could not be compared with that of the file: {reason}",
        where=str(where),
        possible=possible,
        fix=f"make sure that it is {name}, or tell with `base=` what the model was loaded from",
    )


def _name_of(model: torch.nn.Module) -> str | None:
    name = getattr(unwrap(model), "name_or_path", None)
    return name if isinstance(name, str) and name else None


def _files_of(model: torch.nn.Module) -> list[Path]:
    name = _name_of(model)
    return sorted(Path(name).glob("*.safetensors")) if name is not None and Path(name).is_dir() else []


def _dtype_of(model: torch.nn.Module) -> str | None:
    first = next(model.parameters(), None)
    return None if first is None else str(first.dtype).removeprefix("torch.")


def _base_without(model: torch.nn.Module, held: Collection[str]) -> list[str]:
    """Canonical paths of the base's parameters but for `held`, a tied one under its first name."""
    left_out = {ref.path for ref in ModuleTree.from_model(model).params if ref.is_adapter}.union(held)
    return [path for path, _ in canonical_named_parameters(model, unique=True) if path not in left_out]
