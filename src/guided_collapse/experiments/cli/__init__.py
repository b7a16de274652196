"""The entry point of `guided-collapse`, which reports errors and sets the exit status. The commands are in `commands.py`."""

import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from importlib import metadata

from guided_collapse.experiments.errors import RequestError, error_message

__all__ = ["main"]

FAILED, WRONG_REQUEST = 1, 2
INTERRUPTED, BROKEN_PIPE = 130, 141  # the statuses that shells report for other tools


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status.

    The status is 0 for success, 1 for a failure at run time (a full disk, out of memory, a lost process), 2 for an invalid
    request, 130 for an interrupt, and 141 for a broken pipe, as in `guided-collapse list | head -1`. Help, and flags that cannot
    be parsed, raise SystemExit.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["--version"]:
        print(metadata.version("guided-collapse"))
        return 0
    show_traceback = words[:1] == ["--traceback"]
    words = words[show_traceback:]
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: print(
            f"guided-collapse: warning: {' '.join(str(message).split())}", file=sys.stderr
        )
        for category in (DeprecationWarning, FutureWarning):
            warnings.simplefilter("ignore", category)  # addressed to the developers of other libraries
        try:
            # Imported here so that a missing package is reported like other errors.
            from guided_collapse.experiments.cli.commands import help_text, parsed

            if not words or words[0] in ("-h", "--help", "help"):
                print(help_text(), file=sys.stdout if words else sys.stderr)
                return 0 if words else WRONG_REQUEST
            status = parsed(words).run()
            sys.stdout.flush()  # so that a broken pipe raises its error here
        except BrokenPipeError:
            # The rest of the buffer would fail again when the interpreter exits.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return BROKEN_PIPE
        except (ValueError, ModuleNotFoundError, MemoryError, RuntimeError, OSError) as error:
            if show_traceback:
                traceback.print_exc()
            print(f"guided-collapse: {error_message(error)}", file=sys.stderr)
            return WRONG_REQUEST if isinstance(error, RequestError | ModuleNotFoundError) else FAILED
        except KeyboardInterrupt:
            print("guided-collapse: interrupted. Repeat the command: a run continues from its last checkpoint.", file=sys.stderr)
            return INTERRUPTED
    return status
