"""Adapters: what a PEFT method is, where it goes, and how it computes.

Knows nothing of freeze configs or plans: who trains is decided above.
"""

from frostline.adapters.active import InjectedAdapter, adapters_of, disabled, is_adapted
from frostline.adapters.base import PEFT, differences_of, method_names, parse_method, register_method
from frostline.adapters.injection import inject, planned_params
from frostline.adapters.merge import merge, remove_adapters, unmerge, unmerged_weights
from frostline.adapters.methods.lora import LoRA
from frostline.adapters.rows import LaidRows, lay_rows, refuse_unsupported, remove_rows, rows_of
from frostline.adapters.targets import Target, Targets, find_targets

__all__ = [
    "PEFT",
    "InjectedAdapter",
    "LaidRows",
    "LoRA",
    "Target",
    "Targets",
    "adapters_of",
    "differences_of",
    "disabled",
    "find_targets",
    "inject",
    "is_adapted",
    "lay_rows",
    "merge",
    "method_names",
    "parse_method",
    "planned_params",
    "refuse_unsupported",
    "register_method",
    "remove_adapters",
    "remove_rows",
    "rows_of",
    "unmerge",
    "unmerged_weights",
]
