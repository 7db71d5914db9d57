"""How a command ends: four-part messages and exit statuses instead of tracebacks.

0    done
1    an error that Frostline did not foresee (a traceback with --debug)
2    bad input, damaged files, a full disk or memory, training that had to stop: one message in four parts
130  interrupted from the keyboard
141  whoever reads the output went away, as `head` does; the work was not finished
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from frostline.errors import FrostlineError, Problem

BAD_INPUT, UNFORESEEN, INTERRUPTED, NO_READER = 2, 1, 130, 141
# Both torch's CPU allocator (a plain RuntimeError) and its accelerators' OutOfMemoryError say one of these.
_NO_MEMORY = ("can't allocate memory", "out of memory")


@contextmanager
def reported(debug: bool) -> Iterator[None]:
    """Print errors of the block in plain words and exit; with `debug` let them through with their traceback."""
    try:
        yield
        sys.stdout.flush()  # here, where a reader that went away is still noticed
    except FrostlineError as error:
        if debug:
            raise
        _end(error, BAD_INPUT)
    except KeyboardInterrupt as interrupt:
        if debug:
            raise
        _end(str(interrupt) or "interrupted", INTERRUPTED)
    except BrokenPipeError:
        # What is left cannot be written anywhere; without this the interpreter tries, and complains, at its exit.
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(NO_READER) from None
    except Exception as error:
        if debug:
            raise
        problem = _environment_problem(error)
        if problem is not None:
            _end(problem, BAD_INPUT)
        _end(
            Problem(
                f"{type(error).__name__}: {error}",
                "inside Frostline, or a library that it uses",
                "this was not foreseen",
                "run again with --debug, and report the traceback",
            ),
            UNFORESEEN,
        )


def _end(message: object, status: int) -> None:
    print(message if status == INTERRUPTED else f"error: {message}", file=sys.stderr)
    raise SystemExit(status) from None


def _environment_problem(error: Exception) -> Problem | None:
    """What the machine refused wherever it happened: memory, or a file that cannot be used."""
    text = str(error)
    if isinstance(error, MemoryError) or any(words in text.lower() for words in _NO_MEMORY):
        return Problem(
            f"there is not enough memory: {text.splitlines()[0] if text else type(error).__name__}",
            "the memory of this machine or of its accelerator",
            "`frostline plan` shows what weights, gradients and optimizer take; activations grow with the batch",
            "lower training.micro_batch_size or data.max_length, or set training.gradient_checkpointing: all",
        )
    if isinstance(error, OSError) and error.strerror:
        name = _shown(str(error.filename)) if error.filename is not None else "a file"
        return Problem(
            f"cannot use {name}: {error.strerror}",
            name if error.filename is not None else "the operating system",
            "files and folders that exist, can be read, and can be written where something is saved",
            "correct the path or its permissions; --debug shows where it was used",
        )
    return None


def _shown(name: str) -> str:
    return name if len(name) <= 160 else f"{name[:80]}...{name[-40:]}"
