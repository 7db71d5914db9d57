"""Files hold whole tensors, and are read into whole tensors: a model whose parameters are sharded is refused."""

from __future__ import annotations

from torch import nn

from frostline.config.wording import shorten_names
from frostline.errors import CheckpointError
from frostline.tree import canonical_named_parameters, is_distributed

_GATHER = """gather the values on every process, and save them from one, in a model prepared as this one was:
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
if torch.distributed.get_rank() == 0:
    whole.load_state_dict(state)"""


def require_whole_to_save(model: nn.Module, what: str) -> None:
    """Refuse to save from a model of which this process holds parts.

    Raises:
        CheckpointError: parameters are DTensors, as after `fully_shard` or tensor parallel.
    """
    _require_whole(model, what, _GATHER)


def require_whole_to_load(model: nn.Module, what: str) -> None:
    """Refuse to load into a model of which this process holds parts. Raises as `require_whole_to_save`."""
    _require_whole(model, what, f"call {what} on the bare model, on every process, before it is sharded")


def _require_whole(model: nn.Module, what: str, fix: str) -> None:
    parts = [path for path, param in canonical_named_parameters(model, unique=True) if is_distributed(param)]
    if parts:
        raise CheckpointError(
            f"{len(parts)} parameters are sharded, so that this process has but a part of them: "
            f"{shorten_names(parts, 5)}",
            where=what,
            possible="a model whose parameters are whole in this process: bare, compiled, or inside DDP",
            fix=fix,
        )
