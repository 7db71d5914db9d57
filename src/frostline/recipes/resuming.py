"""Which run folder a config may write, and with which config a run may go on.

Asked before anything slow begins. Knows configs and run folders, no models.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, cast

from frostline.checkpoint import Manifest, RunFolder
from frostline.checkpoint.plan_record import PLAN_FILE, read_plan_record, trained_so_far
from frostline.config.load import LoadedConfig
from frostline.config.origin import Key, join_keys
from frostline.config.wording import flow, shorten_names
from frostline.errors import CheckpointError, ConfigError, FrostlineError
from frostline.recipes.config_checks import read_config
from frostline.trainability import TrainabilityPlan

CONFIG_FILE = "config.yaml"
# Keys that a resumed run may change: they decide what is written and shown, not what is computed.
FREE_ON_RESUME = ("output_dir", "checkpoint", "tracking")
# Free where a change of the plan is allowed. Not the targets in `peft`: adapters must be those of the checkpoint.
FREE_WITH_PLAN = ("freeze_config",)


def require_folder(
    loaded: LoadedConfig, mode: Literal["new", "resume", "overwrite"], *, allow_plan_change: bool = False
) -> None:
    """Refuse a run folder that cannot be used, before anything slow begins. Leaves no trace.

    Raises:
        CheckpointError: see `RunFolder.open`.
    """
    RunFolder.require_usable(loaded.run_folder, mode)
    if mode == "resume" and loaded.run_folder.is_dir() and any(loaded.run_folder.iterdir()):
        with RunFolder.open(loaded.run_folder, mode) as run:
            if run.latest() is not None:
                require_same_config(run, loaded, allow_plan_change=allow_plan_change)


def newest_checkpoint(folder: Path) -> Path | None:
    """The newest complete checkpoint of the run in `folder`; None where there is none, or no run."""
    return RunFolder.read(folder).latest() if (folder / "checkpoints").is_dir() else None


def step_reached(folder: Path) -> int:
    """Steps that the newest checkpoint of the run in `folder` has done; 0 where there is none.

    Raises:
        CheckpointError: its manifest cannot be read.
    """
    newest = newest_checkpoint(folder)
    return 0 if newest is None else Manifest.read(newest).step


def require_same_config(run: RunFolder, loaded: LoadedConfig, *, allow_plan_change: bool = False) -> None:
    """Refuse to resume with a config that would compute something else.

    `allow_plan_change` takes one that differs only in which parameters train.

    Raises:
        CheckpointError: lists every changed key.
    """
    file = run.path / CONFIG_FILE
    try:
        before = read_config(file)
    except FrostlineError as error:
        raise CheckpointError(
            f"{file} cannot be read, so that the run cannot be resumed",
            where=file,
            possible=error.problems[0].what,
            fix="restore the file, or start again with --overwrite",
        ) from None
    old, new = before.config.model_dump(mode="json"), loaded.config.model_dump(mode="json")
    free = FREE_ON_RESUME + FREE_WITH_PLAN if allow_plan_change else FREE_ON_RESUME
    if _is_same_device(before.config.device, loaded.config.device):
        old["device"] = new["device"]
    changes = [change for change in _changes(old, new) if not _is_below(change[0], free)]
    if changes:
        only_plan = all(_is_below(keys, FREE_WITH_PLAN) for keys, _, _ in changes)
        raise CheckpointError(
            f"the config differs from that of the run in {run.path}: "
            f"{shorten_names([join_keys(keys) for keys, _, _ in changes])}",
            where="\n".join(str(loaded.origins.at(*keys)) for keys, _, _ in changes[:5]),
            possible="\n".join(
                f"{join_keys(keys)}: {_in_words(was)} in the run, {_in_words(now)} now"
                for keys, was, now in changes[:8]
            )
            + f"\nfree to change: {', '.join(free)}",
            fix="restore the values, or give --allow-plan-change to go on with other parameters"
            if only_plan
            else "restore the values, or train into another output_dir",
        )


def require_nothing_lost(checkpoint: Path, plan: TrainabilityPlan) -> None:
    """Refuse to go on from `checkpoint` with a plan under which what it trained would not be saved any more.

    Raises:
        CheckpointError: names the parameters of the base that have trained and would be frozen.
    """
    trained = trained_so_far(read_plan_record(checkpoint / PLAN_FILE))
    plan = plan.in_phase(plan.phase_at(max(Manifest.read(checkpoint).step - 1, 0)))
    lost = [path for path in trained if path in plan.decisions and plan.decisions[path].path not in plan.kept]
    if lost:
        shown = ", ".join(lost[:6]) + (f" and {len(lost) - 6} more" if len(lost) > 6 else "")
        raise CheckpointError(
            f"{len(lost)} parameters have trained so far and would be frozen now: {shown}",
            where=checkpoint,
            possible="a plan that trains at least what has trained: checkpoints keep what their plan trains, no more",
            fix="thaw them in `freeze_config.unfreeze_modules`, or start a new run",
        )


def _is_same_device(then: str, now: str) -> bool:
    """Whether both words mean one device of this machine, as `auto` and `cpu` where there is nothing faster."""
    if then == now:
        return True
    from frostline.training.device import resolve_device  # brings torch, which most comparisons do without

    try:
        devices = [resolve_device(name) for name in (then, now)]
    except ConfigError:  # not on this machine
        return False
    return len({(device.type, device.index or 0) for device in devices}) == 1


def _is_below(keys: tuple[Key, ...], places: tuple[str, ...]) -> bool:
    return keys[0] in places


def _changes(old: Any, new: Any, prefix: tuple[Key, ...] = ()) -> list[tuple[tuple[Key, ...], Any, Any]]:
    """(keys, value before, value now) of what differs; lists of equally many mappings are compared item by item."""
    if isinstance(old, dict) and isinstance(new, dict):
        names: Iterable[Key] = dict.fromkeys([*old, *new])
        pairs = [(name, old.get(name), new.get(name)) for name in names]
    elif _are_mappings(old) and _are_mappings(new) and len(old) == len(new):
        pairs = [(index, was, now) for index, (was, now) in enumerate(zip(old, new, strict=True))]
    else:
        return [] if old == new else [(prefix, old, new)]
    return [change for key, was, now in pairs for change in _changes(was, now, (*prefix, key))]


def _are_mappings(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, dict) for item in cast("list[Any]", value))


def _in_words(value: Any) -> str:
    """`value` as YAML, without the keys of its mappings that are not set."""
    return flow(_without_null(value))


def _without_null(value: Any) -> Any:
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value).items()
        return {key: _without_null(child) for key, child in items if child is not None}
    return [_without_null(child) for child in cast("list[Any]", value)] if isinstance(value, list) else value
