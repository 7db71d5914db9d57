"""Hub data sets through the `datasets` library: `org/name`, with a configuration and a split.

The only file here that imports datasets for reading. Knows nothing of local files.
"""

from __future__ import annotations

from typing import Any

from frostline.config.origin import Origin
from frostline.data.rows import Rows, place
from frostline.errors import DataError


def load_hub(source: str, split: str | None, name: str | None, origin: Origin | None) -> Rows:
    """Read a hub data set (or what the local cache holds of it, when offline).

    Raises:
        DataError: unknown or unreachable data set, configuration or split; several splits and none was chosen.
    """
    import datasets
    from datasets.exceptions import DatasetsError
    from huggingface_hub.errors import HTTPError

    load: Any = datasets.load_dataset
    try:
        loaded = load(source, name, split=split)
    except (OSError, ValueError, DatasetsError, HTTPError) as error:
        text = str(error).strip().splitlines()
        raise DataError(
            f"the data set {source!r} cannot be loaded"
            + (f" (name {name!r})" if name else "")
            + (f" (split {split!r})" if split else "")
            + f": {text[0] if text else type(error).__name__}",
            where=place(source, origin),
            possible="\n".join(text[1:4]) or "no file or folder has that name here, so it was taken as a hub id",
            fix="check the id, `name` and `split`; offline (HF_HUB_OFFLINE=1) only data sets in the cache can be used",
        ) from error
    if isinstance(loaded, dict):
        splits: dict[str, Any] = dict(loaded)  # pyright: ignore[reportUnknownArgumentType]
        if len(splits) > 1:
            raise DataError(
                f"the data set {source!r} has the splits {', '.join(splits)}, and none was chosen",
                where=place(source, origin),
                possible=f"split: {' | '.join(splits)}",
                fix=f"write `{{source: {source}, split: {next(iter(splits))}}}`",
            )
        loaded = next(iter(splits.values()))
    return Rows.from_dataset(loaded, source)
