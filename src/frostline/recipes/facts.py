"""What a run's first screen says beside the table: data, steps, how far backward goes, where the result loads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from frostline.checkpoint import plan_layout
from frostline.checkpoint.peft_layout import OTHERWISE
from frostline.config.load import LoadedConfig
from frostline.preparation import prepare
from frostline.recipes.method import method_of
from frostline.recipes.steps import total_steps
from frostline.trainability import TrainabilityPlan
from frostline.trainability.screen.backward import backward_reaches
from frostline.training.schedule import build_schedule

if TYPE_CHECKING:
    from frostline.integrations.hf_models.build import MetaModel
    from frostline.recipes.assembly import Assembly
    from frostline.recipes.recipe import PreparedData

_OPTIMIZERS = {
    **{"adamw": "AdamW", "adam": "Adam", "nadam": "NAdam", "radam": "RAdam", "adamax": "Adamax", "sgd": "SGD"},
    **{"rmsprop": "RMSprop", "adagrad": "Adagrad", "adadelta": "Adadelta", "adafactor": "Adafactor"},
}
_VLLM_MAX_RANK = 512  # the largest value that vLLM's --max-lora-rank takes


def facts_of(
    loaded: LoadedConfig, data: PreparedData, plan: TrainabilityPlan, *, notes: Sequence[str], loads_in: str = ""
) -> dict[str, str]:
    """The lines by name, those of the data's and the model's notes among them.

    Raises:
        ConfigError: the warm-up does not fit into the steps.
    """
    config = loaded.config
    steps = total_steps(loaded, data)
    # A warm-up that does not fit is said now.
    build_schedule(config.schedule, total_steps=steps, phases=plan.phases, origins=loaded.origins)
    length = _length(loaded, len(data.train), steps)
    rate = f"lr {config.learning_rate:g} {config.schedule.name}"
    facts = {
        "optimizer": _OPTIMIZERS.get(config.optimizer.name, config.optimizer.name),
        "data": data.summary if loads_in else data.summary.partition(";")[0],  # `--data N` needs a tokenizer
        **({"labels": data.label_summary} if data.label_summary else {}),
        "steps": f"{steps:,} = {length}, {rate}; {_backward(plan)}",
        **({"loads in": loads_in} if loads_in else {}),
    }
    notes = [*notes, *data.notes]
    facts.update({f"note {index}" if index else "note": note for index, note in enumerate(notes)})
    return facts


def _length(loaded: LoadedConfig, num_examples: int, steps: int) -> str:
    """What `steps` is equal to: `800 / 32 x 1 epoch`, `4 epochs x 13 (196 / 16 rounded up)`."""
    training = loaded.config.training
    if training.max_steps:
        return f"{training.max_steps} (max_steps)"
    count = training.epochs or 1
    epochs = f"{count:g} epoch{'s' if count != 1 else ''}"
    per_epoch, size = math.ceil(num_examples / training.batch_size), f"{num_examples:,} / {training.batch_size}"
    divides = num_examples % training.batch_size == 0
    product = f"{size} x {epochs}" if divides else f"{epochs} x {per_epoch:,} ({size} rounded up)"
    return product if abs(per_epoch * count - steps) < 1e-6 else f"{product}, rounded up"


def _backward(plan: TrainabilityPlan) -> str:
    """Where backward stops, in each phase that has it elsewhere than the one before."""
    ends = [backward_reaches(plan.in_phase(index)) for index in range(len(plan.phases) + 1)]
    places = [end for index, end in enumerate(ends) if index == 0 or end != ends[index - 1]]
    return f"backward reaches {', then '.join(places)}"


def loads_in(assembly: Assembly, meta: MetaModel, plan: TrainabilityPlan, loaded: LoadedConfig) -> str:
    """Which tools can load what the run leaves. Injects the adapters into `meta`'s model."""
    if assembly.location.kind == "factory":
        what = "the adapter in peft, on a model that the factory builds" if plan.peft else "no other tool by itself"
        return f"frostline, with the factory at hand; {what}"
    if not plan.peft:
        return "transformers after `frostline export --to merged`; peft no (no adapter)"
    prepare(
        meta.model,
        freeze_config=loaded.data.get("freeze_config"),
        peft=method_of(loaded),
        new=meta.new,
        origins=loaded.origins,
    )
    plan = plan.in_phase(len(plan.phases))  # when all has trained that ever does
    layout = plan_layout(meta.model, plan, task_type=assembly.task_type)
    in_full = [path for path in plan.kept if plan.decisions[path].kind not in ("adapter", "rows")]
    in_rows = [path for path in plan.kept if plan.decisions[path].kind == "rows"]
    peft = f"peft without {len(layout.inexpressible)} tensors" if layout.inexpressible else "peft"
    if any(note.startswith(OTHERWISE) for note in layout.notes):
        peft = "peft no (shared modules are adapted)"
    rank = int(layout.config["r"])
    if in_full:
        vllm = "vLLM no (modules trained in full)"
    elif in_rows:
        vllm = "vLLM no (trained rows)"
    elif layout.inexpressible or rank > _VLLM_MAX_RANK:
        vllm = "vLLM no " + (f"(rank above {_VLLM_MAX_RANK})" if rank > _VLLM_MAX_RANK else "(more than adapters)")
    else:
        vllm = "vLLM"
    return f"{peft}, transformers after merge; {vllm}"
