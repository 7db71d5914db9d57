"""The folder `adapter/`: the trained part of a run with adapters, as Hugging Face peft reads it.

`adapter_model.safetensors` and `adapter_config.json` are peft's; `frostline.json` beside them says which base and plan
they belong to. Knows nothing of optimizers or run folders.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from frostline.checkpoint.atomic import standing, write_file
from frostline.checkpoint.fingerprint import BaseIdentity
from frostline.checkpoint.json_file import read_json
from frostline.checkpoint.peft_layout import (
    PeftLayout,
    names_of_rows,
    only_adapter,
    peft_key,
    plan_layout,
    planned_empty,
    require_no_extra_state,
    trained_paths,
)
from frostline.checkpoint.peft_matching import PREFIX
from frostline.checkpoint.peft_rows import in_order, is_rows_key, rows_in, rows_key
from frostline.checkpoint.rows_match import require_same_rows
from frostline.checkpoint.tensor_file import PICKLED, read_tensors, require_fit, values_of, write_tensors
from frostline.errors import CheckpointError
from frostline.trainability import TrainabilityPlan
from frostline.tree import TRAINED_ROWS, join_path

WEIGHTS = "adapter_model.safetensors"
CONFIG = "adapter_config.json"
OWN = "frostline.json"


@dataclass(frozen=True)
class AdapterFile:
    """A folder in peft's layout, as read.

    Attributes:
        directory: where it lies.
        config: `adapter_config.json`.
        tensors: by key of the file, on the CPU.
        base: base that it belongs to; None in a folder that Frostline did not write.
        plan_digest: digest of the plan that trained it; None likewise.
        rows: by path of a module, which rows of its weight the file holds; the tensor has them by rising index.
    """

    directory: Path
    config: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    base: BaseIdentity | None = None
    plan_digest: str | None = None
    rows: Mapping[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])

    @property
    def targets(self) -> tuple[str, ...]:
        """Paths of the adapted modules, from the keys of the file, sorted."""
        ends = (".lora_A.weight", ".lora_A")
        found = {
            key.removeprefix(PREFIX).removesuffix(end) for key in self.tensors for end in ends if key.endswith(end)
        }
        return tuple(sorted(found))

    @property
    def trained_in_full(self) -> tuple[str, ...]:
        """Paths of the base's parameters and buffers in the file, sorted."""
        keys = (key.removeprefix(PREFIX) for key in self.tensors if ".lora_" not in key and not is_rows_key(key))
        return tuple(sorted(key.replace(".base_layer.", ".") for key in keys))


def write_adapter(
    model: torch.nn.Module,
    plan: TrainabilityPlan,
    directory: str | Path,
    base: BaseIdentity | None = None,
    *,
    adapter: str | None = None,
    task_type: str | None = None,
) -> PeftLayout:
    """Write the trained part of `model` into `directory`, so that `peft.PeftModel.from_pretrained` loads it.

    Args:
        directory: made if it is not there.
        base: which base it belongs to; its name is what peft loads the base by.
        adapter: name of the adapter, needed where the model has several.
        task_type: peft's task type, such as `SEQ_CLS`.

    Returns the layout; what is in its `inexpressible` has **not** been written, and is for `save_trained(only=...)`.

    Raises:
        CheckpointError: no adapter, a tensor that is empty, of the wrong shape or not finite, a trained module with
            state of its own (`get_extra_state`), the disk is full.
    """
    directory = Path(directory)
    require_no_extra_state(model, plan)
    layout = plan_layout(model, plan, adapter=adapter, task_type=task_type)
    values = values_of(model)
    _check_rank(layout, values)
    directory.mkdir(parents=True, exist_ok=True)
    shown = {key: path for path, key in layout.keys.items()}
    empty = {layout.keys[path] for path in planned_empty(plan) if path in layout.keys}
    tensors = {key: values[path] for path, key in layout.keys.items()}
    write_tensors(directory / WEIGHTS, tensors, shown, may_be_empty=empty)
    base = base or BaseIdentity()
    config = {**layout.config, "base_model_name_or_path": base.folder or base.name_or_path, "revision": base.revision}
    write_file(directory / CONFIG, json.dumps(config, indent=2, sort_keys=True) + "\n")
    own = {"format_version": 1, "base": base.to_dict(), "plan_digest": plan.digest, "notes": layout.notes}
    write_file(directory / OWN, json.dumps(own, indent=1) + "\n")
    return layout


def read_adapter(directory: str | Path) -> AdapterFile:
    """Read a folder in peft's layout, written by Frostline or by peft.

    Raises:
        CheckpointError: a file is missing, damaged or a pickle; the method is not LoRA, or has a rank, alpha or dropout
            that is none; keys in another layout.
    """
    directory = standing(Path(directory))
    _require_config(directory / CONFIG)
    config = read_json(directory / CONFIG, _parse_config)
    if config.get("peft_type") != "LORA":
        raise CheckpointError(
            f"the adapter's peft_type is {config.get('peft_type')!r}",
            where=directory / CONFIG,
            possible="LORA",
            fix="load it with peft, or train a LoRA adapter",
        )
    tensors = read_tensors(directory / WEIGHTS)
    foreign = [key for key in tensors if not key.startswith(PREFIX)]
    if foreign or not tensors:
        raise CheckpointError(
            f"{len(foreign)} of {len(tensors)} tensors have no name in peft's layout: {', '.join(foreign[:4])}"
            if tensors
            else "the adapter file is empty",
            where=directory / WEIGHTS,
            possible=f"names that begin with {PREFIX}",
            fix="save it again with peft or frostline",
        )
    base, plan_digest = read_json(directory / OWN, _parse_own) if (directory / OWN).is_file() else (None, None)
    rows = read_json(directory / CONFIG, lambda config: rows_in(config, tensors))
    for path, indices in rows.items():
        key = rows_key(join_path(path, TRAINED_ROWS))
        tensors[key] = in_order(tensors[key], indices)
    in_file = {path: tuple(sorted(indices)) for path, indices in rows.items()}
    return AdapterFile(directory, config, tensors, base, plan_digest, in_file)


def match_adapter(
    model: torch.nn.Module,
    plan: TrainabilityPlan,
    file: AdapterFile,
    *,
    adapter: str | None = None,
    elsewhere: frozenset[str] = frozenset(),
    allow_plan_change: bool = False,
) -> dict[str, Tensor]:
    """The tensors of `file` by canonical path of `model`, whose adapters are injected. Changes nothing.

    Args:
        adapter: name of the adapter in the model, needed where it has several. The file carries no name.
        elsewhere: paths that another file holds.
        allow_plan_change: tensors of the base that `plan` does not train are loaded too, and what the file lacks of
            the base keeps its value. Adapters must match in any case.

    Raises:
        CheckpointError: names every tensor that is missing, unexpected, of another shape or not finite.
    """
    injected = only_adapter(model, adapter)
    values = values_of(model)
    rows = names_of_rows(model)
    by_key = {peft_key(path, injected, rows): path for path in values}
    wanted = {peft_key(path, injected, rows): path for path in trained_paths(model, plan, injected.name)}
    # Statistics of a frozen part of a module in modules_to_save come along; they are the base's own values.
    buffers = {key for key, path in by_key.items() if path not in plan.decisions}
    missing = [path for key, path in wanted.items() if key not in file.tensors and path not in elsewhere]
    unexpected = [key for key in file.tensors if key not in wanted and not (key in buffers and key in by_key)]
    if allow_plan_change:
        missing = [path for path in missing if path in plan.decisions and plan.decisions[path].kind == "adapter"]
        unexpected = [key for key in unexpected if key not in by_key]
    if missing or unexpected:
        faults = [f"missing {path}" for path in missing] + [f"unexpected {key}" for key in unexpected]
        rest = f", and {len(faults) - 8} more" if len(faults) > 8 else ""
        applied = len(set(file.tensors) & set(wanted))
        raise CheckpointError(
            f"the adapter file does not fit the model: {applied} of {len(wanted)} expected tensors found; "
            + ", ".join(faults[:8])
            + rest,
            where=file.directory / WEIGHTS,
            possible="exactly the adapters and the trained parameters of the plan",
            fix="use the freeze_config and peft block that the adapter was trained with",
        )
    tensors = {by_key[key]: tensor for key, tensor in file.tensors.items()}
    in_file = {join_path(path, TRAINED_ROWS): indices for path, indices in file.rows.items()}
    require_same_rows(model, in_file, where=file.directory / CONFIG)
    require_fit(model, tensors, where=file.directory / WEIGHTS)
    return tensors


def _check_rank(layout: PeftLayout, values: Mapping[str, Tensor]) -> None:
    """A sharded or half-gathered factor must never reach a file."""
    rank = layout.config["r"]
    for path, key in layout.keys.items():
        shape = tuple(values[path].shape)
        for name, dim in ((".lora_A.weight", 0), (".lora_B.weight", 1)):
            if key.endswith(name) and (len(shape) != 2 or shape[dim] != rank):
                raise CheckpointError(
                    f"{path} has shape {list(shape)}, which does not fit rank {rank}",
                    where=path,
                    possible=f"[{rank}, in_features] for lora_A, [out_features, {rank}] for lora_B",
                    fix="gather the whole tensors of a sharded model before they are saved",
                )


def _require_config(path: Path) -> None:
    if path.is_file():
        return
    there = [item.name for item in path.parent.glob("*") if item.suffix in (*PICKLED, ".safetensors")]
    raise CheckpointError(
        f"there is no adapter here: {path.name} is missing",
        where=path.parent,
        possible=f"a folder with {CONFIG} and {WEIGHTS}" + (f" (found {', '.join(there)})" if there else ""),
        fix="give the folder of an adapter, as RUN/adapter",
    )


def _parse_config(config: dict[str, Any]) -> dict[str, Any]:
    """`config`, after the values that the adapter is computed with were seen."""
    if config.get("peft_type") != "LORA":
        return config  # refused by name
    for key in ("r", "lora_alpha", "lora_dropout", "use_rslora"):
        if key not in config and key in ("r", "lora_alpha"):
            raise ValueError(f"it has no {key}")
        if key in config and not _is_possible(key, config[key]):
            raise ValueError(f"{key} is {config[key]!r}")
    return config


def _is_possible(key: str, value: Any) -> bool:
    if key == "use_rslora":
        return isinstance(value, bool)
    if key == "r":
        return type(value) is int and value >= 1
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return 0 < value < math.inf if key == "lora_alpha" else 0 <= value < 1


def _parse_own(own: dict[str, Any]) -> tuple[BaseIdentity, str | None]:
    digest = own.get("plan_digest")
    if digest is not None and not isinstance(digest, str):
        raise ValueError(f"plan_digest is {digest!r}")
    return BaseIdentity.from_dict(own["base"]), digest
