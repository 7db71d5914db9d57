"""Which run folder a config may write, and with which config a run may go on.

Asked before anything slow begins. Knows configs and run folders, no models.
"""

from __future__ import annotations

from typing import Any, Literal

from frostline.checkpoint import RunFolder
from frostline.config.load import LoadedConfig
from frostline.errors import CheckpointError, FrostlineError
from frostline.recipes.config_checks import read_config

CONFIG_FILE = "config.yaml"
# Keys that a resumed run may change: they decide what is written and shown, not what is computed.
FREE_ON_RESUME = ("output_dir", "checkpoint", "tracking")


def require_folder(loaded: LoadedConfig, mode: Literal["new", "resume", "overwrite"]) -> None:
    """Refuse a run folder that cannot be used, before anything slow begins. Leaves no trace.

    Raises:
        CheckpointError: see `RunFolder.open`.
    """
    RunFolder.require_usable(loaded.run_folder, mode)
    if mode == "resume" and loaded.run_folder.is_dir() and any(loaded.run_folder.iterdir()):
        with RunFolder.open(loaded.run_folder, mode) as run:
            if run.latest() is not None:
                require_same_config(run, loaded)


def require_same_config(run: RunFolder, loaded: LoadedConfig) -> None:
    """Refuse to resume with a config that would compute something else.

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
    changes = [change for change in _changes(old, new) if not change[0].startswith(FREE_ON_RESUME)]
    if changes:
        raise CheckpointError(
            f"the config differs from that of the run in {run.path}: {', '.join(key for key, _, _ in changes)}",
            where="\n".join(str(loaded.origins.at(*key.split("."))) for key, _, _ in changes[:5]),
            possible="\n".join(f"{key}: {was!r} in the run, {now!r} now" for key, was, now in changes[:8])
            + f"\nfree to change: {', '.join(FREE_ON_RESUME)}",
            fix="restore the values, or train into another output_dir",
        )


def _changes(old: Any, new: Any, prefix: str = "") -> list[tuple[str, Any, Any]]:
    if isinstance(old, dict) and isinstance(new, dict):
        keys = dict.fromkeys([*old, *new])
        return [
            change
            for key in keys
            for change in _changes(old.get(key), new.get(key), f"{prefix}.{key}" if prefix else str(key))
        ]
    return [] if old == new else [(prefix, old, new)]
