"""Whether every adapted module really runs: some parents read a weight directly and bypass what was added to it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from frostline.trainability.proof.trained_modules import module_of
from frostline.tree import ModuleTree, canonical_named_modules

if TYPE_CHECKING:
    from frostline.trainability.plan import TrainabilityPlan


class ForwardWatch:
    """Notes which adapted modules run, in training and in evaluation apart.

    It stands before `forward` on the instance. Not a hook: torch's fast path of `nn.TransformerEncoderLayer`, which
    bypasses its linears, is taken only in models without hooks, so that hooks would hide what they look for.

    Attributes:
        phase: `training` or `evaluation`, for what runs from now on.
        targets: paths of the adapted modules that must run; one that may stay without a gradient may stay idle too.
    """

    def __init__(self, model: nn.Module, plan: TrainabilityPlan) -> None:
        self._model = model
        self.phase = "training"
        self._ran: dict[str, set[str]] = {"training": set(), "evaluation": set()}
        self._restore: list[Callable[[], None]] = []
        idle = _may_stay_idle(plan)
        wanted = [path for path in plan.adapters.rules if path not in idle] if plan.adapters else []
        present = {ref.path for ref in ModuleTree.from_model(model).modules} if wanted else set[str]()
        self.targets = [path for path in wanted if path in present]  # another process may hold the others

    def begin(self) -> None:
        """Watch from now on; does nothing while it watches already."""
        if self._restore or not self.targets:
            return
        wanted = set(self.targets)
        for path, module in canonical_named_modules(self._model):
            if path in wanted:
                self._restore.append(_stand_before(module, self._note(path)))

    def pause(self) -> None:
        """Watch no more for now; a compiled model keeps the watch, which its graphs do not contain.

        Taking it away would make the compiler compile everything anew.
        """
        if not any(_is_compiled(module) for module in self._model.modules()):
            self.end()

    def end(self) -> None:
        """Leave every module as it was."""
        for restore in self._restore:
            restore()
        self._restore.clear()

    def missed(self, phase: str) -> list[str]:
        """Targets that did not run in `phase`."""
        return [path for path in self.targets if path not in self._ran[phase]]

    def saw_nothing(self, phase: str) -> bool:
        """Whether it may have been blind: nothing at all ran, and parts of the model are compiled.

        A graph that was compiled before the watch began does not contain it.
        """
        return not self._ran[phase] and any(_is_compiled(module) for module in self._model.modules())

    def _note(self, path: str) -> Callable[[], None]:
        # A compiler takes the note while it traces the call, and the graph holds no trace of it: a set that it saw
        # grow would make it compile every step anew.
        @torch.compiler.assume_constant_result
        def note() -> None:
            self._ran[self.phase].add(path)

        return note


def _stand_before(module: nn.Module, note: Callable[[], None]) -> Callable[[], None]:
    """Let `note` run before each forward of `module`; returns what undoes it."""
    before = module.__dict__.get("forward")
    # A partial, because a copy of the model copies what it holds: the copy must not run the forward of the original.
    module.__dict__["forward"] = partial(_run_noted, module, note, before)

    def restore() -> None:
        if before is None:
            module.__dict__.pop("forward", None)
        else:
            module.__dict__["forward"] = before

    return restore


def _run_noted(module: nn.Module, note: Callable[[], None], before: Any, *args: Any, **kwargs: Any) -> Any:
    note()
    return type(module).forward(module, *args, **kwargs) if before is None else before(*args, **kwargs)


def _is_compiled(module: nn.Module) -> bool:
    return hasattr(module, "_orig_mod") or module.__dict__.get("_compiled_call_impl") is not None


def _may_stay_idle(plan: TrainabilityPlan) -> set[str]:
    """Adapted modules all of whose adapter tensors are conditional."""
    seen: dict[str, bool] = {}
    for entry in plan.decisions.values():
        if entry.kind == "adapter":
            module = module_of(entry.path, plan)
            seen[module] = seen.get(module, True) and entry.conditional
    return {module for module, conditional in seen.items() if conditional}
