"""How a command ends: four-part messages and exit statuses instead of tracebacks.

0    done
1    an error that Frostline did not foresee (a traceback with --debug)
2    bad input, damaged files, training that had to stop: one message in four parts
130  interrupted from the keyboard
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from frostline.errors import FrostlineError

BAD_INPUT, UNFORESEEN, INTERRUPTED = 2, 1, 130


@contextmanager
def reported(debug: bool) -> Iterator[None]:
    """Print errors of the block in plain words and exit; with `debug` let them through with their traceback."""
    try:
        yield
    except FrostlineError as error:
        if debug:
            raise
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(BAD_INPUT) from None
    except KeyboardInterrupt:
        if debug:
            raise
        print("interrupted; a run goes on with --resume from its newest checkpoint", file=sys.stderr)
        raise SystemExit(INTERRUPTED) from None
    except BrokenPipeError:
        # The reader (head, a pager) has seen enough; what is left cannot be written anywhere.
        sys.stderr.close()
        raise SystemExit(0) from None
    except Exception as error:
        if debug:
            raise
        print(
            f"error: {type(error).__name__}: {error}\n"
            "  where:    inside Frostline, or a library that it uses\n"
            "  possible: this was not foreseen\n"
            "  do:       run again with --debug, and report the traceback",
            file=sys.stderr,
        )
        raise SystemExit(UNFORESEEN) from None
