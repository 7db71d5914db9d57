"""Canonical paths of a model's modules, parameters and buffers; wrappers, ties and flags.

Knows only `torch.nn`: nothing of selectors, plans or adapters.
"""

from frostline.tree.collector import collector_paused
from frostline.tree.dtypes import update_dtype
from frostline.tree.flags import set_trainable
from frostline.tree.hashing import tensor_checksum, tensor_checksums
from frostline.tree.local import is_distributed, is_trainable_dtype, local_parts, stored_dtype
from frostline.tree.tree import BufferRef, ModuleRef, ModuleTree, ParamRef, PlannedParam
from frostline.tree.walk import (
    canonical_named_buffers,
    canonical_named_modules,
    canonical_named_parameters,
    join_path,
    read_model,
    unwrap,
)
from frostline.tree.wrappers import TRAINED_ROWS, AdapterPart, HoldsTrainedRows, model_class, wrapped_child
from frostline.tree.wrapping import (
    carry_flags_over,
    data_parallel_parts,
    has_flat_parameters,
    is_fully_sharded,
    shard_groups,
)

__all__ = [
    "TRAINED_ROWS",
    "AdapterPart",
    "BufferRef",
    "HoldsTrainedRows",
    "ModuleRef",
    "ModuleTree",
    "ParamRef",
    "PlannedParam",
    "canonical_named_buffers",
    "canonical_named_modules",
    "canonical_named_parameters",
    "carry_flags_over",
    "collector_paused",
    "data_parallel_parts",
    "has_flat_parameters",
    "is_distributed",
    "is_fully_sharded",
    "is_trainable_dtype",
    "join_path",
    "local_parts",
    "model_class",
    "read_model",
    "set_trainable",
    "shard_groups",
    "stored_dtype",
    "tensor_checksum",
    "tensor_checksums",
    "unwrap",
    "update_dtype",
    "wrapped_child",
]
