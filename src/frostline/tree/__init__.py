"""Canonical paths of a model's modules, parameters and buffers; wrappers, ties and flags.

Knows only `torch.nn`: nothing of selectors, plans or adapters.
"""

from frostline.tree.flags import set_trainable
from frostline.tree.hashing import tensor_checksum, tensor_checksums, tensor_digest
from frostline.tree.local import local_parts
from frostline.tree.tree import BufferRef, ModuleRef, ModuleTree, ParamRef, PlannedParam
from frostline.tree.walk import (
    canonical_named_buffers,
    canonical_named_modules,
    canonical_named_parameters,
    join_path,
    unwrap,
)
from frostline.tree.wrappers import AdapterPart, wrapped_child

__all__ = [
    "AdapterPart",
    "BufferRef",
    "ModuleRef",
    "ModuleTree",
    "ParamRef",
    "PlannedParam",
    "canonical_named_buffers",
    "canonical_named_modules",
    "canonical_named_parameters",
    "join_path",
    "local_parts",
    "set_trainable",
    "tensor_checksum",
    "tensor_checksums",
    "tensor_digest",
    "unwrap",
    "wrapped_child",
]
