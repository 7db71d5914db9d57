"""`save_adapter` and `load_adapter`: the two calls for a model in a plain loop, without a run folder.

Joins the adapter file with `prepare`; knows nothing of optimizers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import torch

from frostline.adapters import LoRA, adapters_of
from frostline.checkpoint.adapter_file import CONFIG, AdapterFile, load_adapter_tensors, read_adapter, write_adapter
from frostline.checkpoint.fingerprint import BaseIdentity
from frostline.checkpoint.peft_layout import plan_layout
from frostline.errors import CheckpointError
from frostline.preparation import prepare
from frostline.trainability import TrainabilityPlan, plan_of
from frostline.tree import canonical_named_parameters

ModelT = TypeVar("ModelT", bound=torch.nn.Module)

# Keys of peft's LoraConfig that change the maths or the shapes in ways that `LoRA` does not have.
_UNSUPPORTED = (
    "use_dora",
    "rank_pattern",
    "alpha_pattern",
    "fan_in_fan_out",
    "layer_replication",
    "trainable_token_indices",
    "target_parameters",
    "lora_bias",
    "use_bdlora",
    "arrow_config",
    "alora_invocation_tokens",
)


def save_adapter(
    model: torch.nn.Module,
    directory: str | Path,
    *,
    plan: TrainabilityPlan | None = None,
    base: BaseIdentity | None = None,
    adapter: str | None = None,
    task_type: str | None = None,
) -> tuple[str, ...]:
    """Write adapters and all else that has trained into `directory`; `peft.PeftModel.from_pretrained` loads it there.

    Args:
        plan: None takes the one that `prepare` attached to the model.
        base: which base the adapter belongs to.
        adapter: name of the adapter, needed where the model has several.
        task_type: peft's task type, such as `SEQ_CLS` or `CAUSAL_LM`.

    Returns notes on what differs from what one might expect of the folder.

    Raises:
        CheckpointError: something has trained that peft's layout cannot hold; a tensor is empty or not finite; the
            disk is full.
    """
    plan = plan_of(model) if plan is None else plan
    layout = plan_layout(model, plan, adapter=adapter, task_type=task_type)
    if layout.inexpressible:
        path, reason = next(iter(layout.inexpressible.items()))
        raise CheckpointError(
            f"{len(layout.inexpressible)} trained tensors cannot be kept in peft's layout, as {path}: {reason}",
            where=directory,
            fix="keep them with save_trained beside the adapter",
        )
    return write_adapter(model, plan, directory, base, adapter=adapter, task_type=task_type).notes


def load_adapter(
    model: ModelT, directory: str | Path, *, adapter: str = "default", base: BaseIdentity | None = None
) -> tuple[ModelT, TrainabilityPlan]:
    """Load the adapter folder `directory` into `model`, and return both with the plan that trained it.

    A bare model gets the adapters first; one that has them must have been prepared in the same way. Mutates `model`.
    Folders written by peft are read too.

    Args:
        adapter: name for the adapter in the model; the folder carries none.
        base: identity of the base in `model`; another one than the folder names is refused.

    Raises:
        CheckpointError: files missing, damaged or a pickle; another base; tensors that do not fit, named.
    """
    file = read_adapter(directory)
    if base is not None and file.base is not None:
        file.base.check_same(base, where=file.directory)
    plan = plan_of(model) if adapters_of(model) else _prepare_for(model, file, adapter)
    load_adapter_tensors(model, plan, file, adapter=adapter)
    return model, plan


def _prepare_for(model: torch.nn.Module, file: AdapterFile, adapter: str) -> TrainabilityPlan:
    """Inject what `file` needs, and thaw what it holds of the base."""
    config = file.config
    unsupported = [key for key in _UNSUPPORTED if config.get(key)]
    if unsupported:
        raise CheckpointError(
            f"the adapter uses {', '.join(unsupported)}, which cannot be loaded",
            where=file.directory / CONFIG,
            possible="LoRA with one rank and one alpha for all modules",
        )
    names: dict[int, list[str]] = {}
    for path, parameter in canonical_named_parameters(model):
        names.setdefault(id(parameter), []).append(path)
    aliases = {path: paths for paths in names.values() for path in paths}
    known = [path for path in file.targets if any(name.startswith(f"{path}.") for name in aliases)]
    if len(known) < len(file.targets):
        lost = sorted(set(file.targets) - set(known))
        raise CheckpointError(
            f"{len(lost)} of {len(file.targets)} adapted modules are not in the model: {', '.join(lost[:4])}",
            where=file.directory,
            fix="load it into the model that it was trained on",
        )
    method = LoRA(
        rank=config["r"],
        alpha=config.get("lora_alpha", 8),
        dropout=config.get("lora_dropout", 0.0),
        use_rslora=config.get("use_rslora", False),
        target_modules=[{"path": path} for path in file.targets],
    )
    thawed = sorted({name for path in file.trained_in_full for name in aliases.get(path, ())})
    freeze: dict[str, Any] = {"unfreeze_modules": [{"param": path} for path in thawed]} if thawed else {}
    return prepare(model, freeze_config=freeze, peft=method, adapter=adapter)[1]
