"""Tensors that may stay without a gradient in single steps, followed until each has had one.

An expert that no token was routed to, the branch of a modality that a batch lacks: no fault in one step, but in a whole
epoch. Knows no plans.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import Tensor

from frostline.trainability.agreement import Agreement
from frostline.trainability.proof.largest import largest


class ConditionalWatch:
    """Follows conditional tensors; each step costs a look at those that still wait.

    Args:
        params: the trained tensors by path.
        paths: the conditional ones.
        deadline: steps done by which each must have had a gradient; None: never asked.
        waiting: of a resumed run, the path -> deadline that it left; None for a new one.

    Attributes:
        waiting: path -> deadline of those that have had none so far.
    """

    def __init__(
        self,
        params: Mapping[str, Tensor],
        paths: Iterable[str],
        deadline: int | None,
        waiting: Mapping[str, int | None] | None,
        agreement: Agreement,
    ) -> None:
        self._params, self._agreement = params, agreement
        wanted = list(paths)
        self.waiting: dict[str, int | None] = (
            dict.fromkeys(wanted, deadline)
            if waiting is None
            else {path: waiting[path] for path in wanted if path in waiting}
        )
        # The same on every process, whatever each of them sees: at these steps all of them ask together.
        self._shares = bool(wanted) and not agreement.is_alone
        self._due = {limit for limit in self.waiting.values() if limit is not None}

    @property
    def active(self) -> bool:
        """Whether the next step is to be looked at."""
        return bool(self.waiting) if self._agreement.is_alone else bool(self._due)

    def look(self) -> list[str]:
        """Paths that had their first gradient other than zero in this step."""
        sizes = largest({path: grad for path in self.waiting if (grad := self._params[path].grad) is not None})
        arrived = [path for path, value in sizes.items() if value != 0.0]
        for path in arrived:
            del self.waiting[path]
        return arrived

    def overdue(self, done: int) -> list[str]:
        """Paths that should have had a gradient by now: `done` steps are over, the one at hand included."""
        due = {limit for limit in self._due if limit <= done}
        if not due:
            return []
        self._due -= due
        self.share()
        return [path for path, limit in self.waiting.items() if limit in due]

    def share(self) -> None:
        """Forget what any process of the group has seen. Collective."""
        if self._shares:
            gathered = [set(part) for part in self._agreement.gather(list(self.waiting))]
            still = set[str].intersection(*gathered)
            self.waiting = {path: limit for path, limit in self.waiting.items() if path in still}
