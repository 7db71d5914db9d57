"""One JSON file with a mapping, read and taken apart, or an error that names the file.

Knows nothing of what the files mean.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from frostline.errors import CheckpointError

T = TypeVar("T")


def read_json(path: Path, parse: Callable[[dict[str, Any]], T], *, otherwise: str = "use another checkpoint") -> T:
    """What `parse` makes of the mapping in `path`.

    Args:
        parse: may raise ValueError, KeyError, TypeError and AttributeError: the file is damaged then.
        otherwise: what can be done where the file cannot be restored.

    Raises:
        CheckpointError: the file is missing, cannot be read, is not JSON, or holds something else; and what `parse`
            raises of this kind.
    """
    try:
        values: Any = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(values, dict):
            raise ValueError("no mapping at the top")
        return parse(values)  # pyright: ignore[reportUnknownArgumentType]
    except CheckpointError:
        raise
    except FileNotFoundError:
        raise CheckpointError(f"{path.name} is missing", where=path.parent, possible=_POSSIBLE, fix=otherwise) from None
    except OSError as error:
        raise CheckpointError(
            f"{path.name} cannot be read: {error.strerror or error}",
            where=path,
            possible="a file that this user can read",
            fix=f"change the permissions, or {otherwise}",
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(
            f"{path.name} is damaged: {f'it has no {error}' if isinstance(error, KeyError) else error}",
            where=path,
            possible=_POSSIBLE,
            fix=f"restore the file, or {otherwise}",
        ) from None


_POSSIBLE = "the file as it was written"
