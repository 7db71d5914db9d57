"""From a freeze config to a plan, and from the plan to proof.

    parse (rules) -> resolve (plan) -> apply -> bind after surgery -> verify -> prove

Knows nothing of how adapters compute: it sees their parameters as entries of the tree.
"""

from frostline.trainability.decision import Decision, Rule
from frostline.trainability.mode import hold_in_eval, set_training_mode
from frostline.trainability.plan import TrainabilityPlan, attach_plan, built_flags, detach_plan, plan_of
from frostline.trainability.prove import Prover
from frostline.trainability.resolve import AdapterTargets, Reach, reach_of, resolve_plan
from frostline.trainability.rules import FreezeRules, parse_freeze_config
from frostline.trainability.trained_rows import named_in_rows, show_rows

__all__ = [
    "AdapterTargets",
    "Decision",
    "FreezeRules",
    "Prover",
    "Reach",
    "Rule",
    "TrainabilityPlan",
    "attach_plan",
    "built_flags",
    "detach_plan",
    "hold_in_eval",
    "named_in_rows",
    "parse_freeze_config",
    "plan_of",
    "reach_of",
    "resolve_plan",
    "set_training_mode",
    "show_rows",
]
