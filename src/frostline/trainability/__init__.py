"""From a freeze config to a plan, and from the plan to proof.

    parse (rules) -> resolve (plan) -> apply -> bind after surgery -> verify -> prove

Knows nothing of how adapters compute: it sees their parameters as entries of the tree.
"""

from frostline.trainability.adapter_targets import AdapterTargets
from frostline.trainability.attached import attach_plan, built_flags, detach_plan, plan_of
from frostline.trainability.decision import Decision, Rule
from frostline.trainability.mode import hold_in_eval, set_training_mode
from frostline.trainability.phases.enter import enter_phase
from frostline.trainability.phases.phase import Phase
from frostline.trainability.plan import TrainabilityPlan
from frostline.trainability.proof.prove import Prover
from frostline.trainability.reach import Reach, reach_of
from frostline.trainability.resolve import resolve_plan
from frostline.trainability.rules import FreezeRules, parse_freeze_config
from frostline.trainability.screen.difference import Difference, diff_phases, diff_plans, fold_differences
from frostline.trainability.screen.forecast import Forecast
from frostline.trainability.screen.phase_lines import describe_phase, phases_to_json
from frostline.trainability.trained_rows import named_in_rows, show_rows

__all__ = [
    "AdapterTargets",
    "Decision",
    "Difference",
    "Forecast",
    "FreezeRules",
    "Phase",
    "Prover",
    "Reach",
    "Rule",
    "TrainabilityPlan",
    "attach_plan",
    "built_flags",
    "describe_phase",
    "detach_plan",
    "diff_phases",
    "diff_plans",
    "enter_phase",
    "fold_differences",
    "hold_in_eval",
    "named_in_rows",
    "parse_freeze_config",
    "phases_to_json",
    "plan_of",
    "reach_of",
    "resolve_plan",
    "set_training_mode",
    "show_rows",
]
