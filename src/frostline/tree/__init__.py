"""Canonical paths of a model's modules, parameters and buffers; wrappers, ties and flags.

Knows only `torch.nn`: nothing of selectors, plans or adapters.
"""

from frostline.tree.dtypes import update_dtype
from frostline.tree.flags import set_trainable
from frostline.tree.hashing import tensor_checksum, tensor_digest
from frostline.tree.tree import BufferRef, ModuleRef, ModuleTree, ParamRef, PlannedParam
from frostline.tree.walk import (
    canonical_named_buffers,
    canonical_named_modules,
    canonical_named_parameters,
    join_path,
    unwrap,
)
from frostline.tree.wrappers import TRAINED_ROWS, AdapterPart, HoldsTrainedRows, wrapped_child

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
    "join_path",
    "set_trainable",
    "tensor_checksum",
    "tensor_digest",
    "unwrap",
    "update_dtype",
    "wrapped_child",
]
