"""How Hugging Face peft chooses modules from `adapter_config.json`, and which config chooses exactly what we mean.

Reproduces peft 0.21's rules over plain paths, so that peft itself is not needed to write for it (tests hold the rules
against the real library). Knows nothing of plans, parameters or files.

    target_modules    list: the full path, or its end at a dot.   text: a regular expression over the full path
    modules_to_save   the end of the path, at a dot or not: `classifier` also takes `pre_classifier`
    task types        some add names to modules_to_save by themselves (`AUTOMATIC_NAMES`)
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

PREFIX = "base_model.model."
AUTOMATIC_NAMES = {
    "SEQ_CLS": ("classifier", "score"),
    "TOKEN_CLS": ("classifier", "score"),
    "QUESTION_ANS": ("qa_outputs",),
}
# What peft's LoRA layer puts below the module that it replaces.
_LAYER_PARTS = (
    "base_layer",
    *("lora_dropout", "lora_A", "lora_B", "lora_embedding_A", "lora_embedding_B", "lora_magnitude_vector"),
    *("lora_dropout.default", "lora_A.default", "lora_B.default"),
)


def target_modules_for(targets: Collection[str], modules: Collection[str]) -> list[str] | str:
    """The shortest `target_modules` with which peft chooses `targets` and nothing else among `modules`.

    A list of path ends where each is unambiguous, else a regular expression over full paths.
    """
    wanted = set(targets)
    matches: dict[str, bool] = {}

    for path in modules:
        parts = path.split(".")
        for start in range(len(parts)):
            end = ".".join(parts[start:])
            matches[end] = matches.get(end, True) and path in wanted
    chosen: set[str] = set()
    for path in wanted:
        parts = path.split(".")
        ends = (".".join(parts[start:]) for start in reversed(range(len(parts))))
        end = next((end for end in ends if matches[end]), None)
        if end is None:
            return "|".join(re.escape(path) for path in sorted(wanted))
        chosen.add(end)
    return sorted(chosen)


def targets_of(target_modules: Sequence[str] | str, modules: Collection[str]) -> set[str]:
    """The modules that peft adapts with `target_modules`."""
    if isinstance(target_modules, str):
        pattern = re.compile(target_modules)
        return {path for path in modules if pattern.fullmatch(path)}
    ends = tuple(f".{end}" for end in target_modules)
    return {path for path in modules if path in target_modules or path.endswith(ends)}


def saved_modules_of(names: Collection[str], modules: Collection[str], targets: Collection[str]) -> set[str]:
    """The modules that peft copies and trains in full with `modules_to_save: names`.

    Paths outside `modules` in the answer (`base_model`, parts of an adapted layer) show that a name takes too much.
    """
    ends = tuple(names)
    if not ends:
        return set()
    inside = {f"{target}.{part}" for target in targets for part in _LAYER_PARTS}
    everything = {*modules, *inside} - {""}
    found = {path for path in everything if path.endswith(ends)}
    # For some task types peft matches a second time from the outer wrapper, where every path has the prefix.
    found |= {path for path in everything if (PREFIX + path).endswith(ends)}
    return found | {path for path in ("base_model", PREFIX[:-1]) if path.endswith(ends)}


def shadowed_targets(names: Collection[str], targets: Collection[str]) -> set[str]:
    """Targets that peft leaves without an adapter because they lie in a module of `modules_to_save: names`."""
    patterns = [re.compile(rf"(^|.*\.){name}($|\..*)") for name in names]
    return {path for path in targets if any(pattern.match(path) for pattern in patterns)}


def modules_to_save_for(
    wanted: Collection[str], modules: Collection[str], targets: Collection[str]
) -> tuple[list[str], set[str]]:
    """Names for `modules_to_save` that choose nothing outside `wanted`, and the part of `wanted` that they choose.

    What is left over has no such name, as `classifier` where `pre_classifier` is not to be saved.
    """
    names: list[str] = []
    covered: set[str] = set()
    for path in sorted(wanted):
        if path in covered:
            continue
        last = path.rpartition(".")[2]
        for name in dict.fromkeys((path,) if last.isdigit() else (last, path)):
            found = saved_modules_of([name], modules, targets)
            if any(not module.endswith(name) for module in found):
                continue  # chosen by its prefix alone, which depends on the task type: `model.fc` for `fc`
            if found <= set(wanted) and not shadowed_targets([name], targets):
                names.append(name)
                covered |= found
                break
    return names, covered
