"""The command `guided-collapse`.

The module of a command is imported when it is asked for, and imports what is slow only when its request is understood: help and
wrong flags are answered at once.
"""

import argparse
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module, metadata

from guided_collapse.cli.status import INTERRUPTED, NOBODY_READS, in_words, status_of

COMMANDS = {
    "list": "the experiments and the heads",
    "train": "one run: train PRESET --head H --seed K, or train --data FOLDER",
    "compare": "heads over seeds: compare PRESET --heads H1 H2 --seeds K1 K2",
    "resume": "goes on with a run from its last checkpoint: resume RUN_DIR",
    "report": "a page, tables and figures of runs: report RUNS --out DIR",
    "cost": "time and memory of a training step for each head: cost PRESET",
    "data": "gets a data set: data NAME",
    "export": "the inference model of a run: export RUN_DIR --to FILE",
    "measure": "how collapsed features are, from a file: measure FILE",
}
"""What each command does; the module of its name has `run`, which takes the words after it and returns the exit status."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status.

    0 done, 1 something failed on the way (a full disk, no memory, a lost process), 2 a wrong request, 130 interrupted, 141 nobody
    reads what is printed any more, as in `guided-collapse list | head -1`; 130 and 141 are what shells give to other tools too.

    Args:
        arguments: None takes those of the process.
    """
    parser = argparse.ArgumentParser(prog="guided-collapse", description="Classifier heads at the nearest simplex ETF.")
    parser.add_argument("--version", action="version", version=metadata.version("guided-collapse"))
    parser.add_argument("--traceback", action="store_true", help="with an error, show where in the code it arose")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND", dest="command")
    for name, summary in COMMANDS.items():
        # Flags are the command's own: to this parser nothing looks like one.
        commands.add_parser(name, help=summary, add_help=False, prefix_chars="\0").add_argument("words", nargs="*")
    request = parser.parse_args(arguments)
    run: Callable[[list[str]], int] = import_module(f"guided_collapse.cli.{request.command}").run
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        for category in (DeprecationWarning, FutureWarning):
            warnings.simplefilter("ignore", category)  # of the libraries beneath, for their developers
        return _status(run, request.words, show_traceback=request.traceback)


def _status(run: Callable[[list[str]], int], words: list[str], *, show_traceback: bool) -> int:
    try:
        status = run(words)
        sys.stdout.flush()  # while a reader that has gone can still be seen to
    except BrokenPipeError:
        # What is left in the buffer would fail once more when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return NOBODY_READS
    except (ValueError, ModuleNotFoundError, MemoryError, RuntimeError, OSError) as error:
        if show_traceback:
            traceback.print_exc()
        print(f"guided-collapse: {in_words(error)}", file=sys.stderr)
        return status_of(error)
    except KeyboardInterrupt:
        print(
            "guided-collapse: interrupted; what was written is whole, and a run goes on from its last checkpoint.", file=sys.stderr
        )
        return INTERRUPTED
    return status


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    print(f"guided-collapse: warning: {' '.join(str(message).split())}", file=sys.stderr)
