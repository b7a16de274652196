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

from guided_collapse.experiments.errors import RequestError, in_words

DONE = 0
FAILED = 1
WRONG_REQUEST = 2
# What shells give to other tools too.
INTERRUPTED = 130
NOBODY_READS = 141

COMMANDS = {
    "list": "list the experiments and heads",
    "train": "train one run: train PRESET --head H --seed K, or train --data FOLDER",
    "compare": "compare heads over seeds: compare PRESET --heads H1 H2 --seeds K1 K2",
    "search": "find good settings for each head, then compare: search PRESET --grid learning_rate=0.05,0.1",
    "resume": "continue a run from its last checkpoint: resume RUN_DIR",
    "report": "write a page, tables and figures about runs: report RUNS --out DIR",
    "cost": "measure time and memory of a training step for each head: cost PRESET",
    "data": "download and check a data set: data NAME",
    "export": "write a run's model for inference: export RUN_DIR --to FILE",
    "measure": "measure the neural collapse of features in a file: measure FILE",
}
"""What each command does; the module of its name has `run`, which takes the words after it and returns the exit status."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status.

    0 done, 1 something failed on the way (a full disk, no memory, a lost process), 2 a wrong request, 130 interrupted, 141 nobody
    reads what is printed any more, as in `guided-collapse list | head -1`.

    Args:
        arguments: None takes those of the process.
    """
    description = "Train, compare and measure classifier heads that are simplex ETFs."
    parser = argparse.ArgumentParser(prog="guided-collapse", description=description)
    parser.add_argument("--version", action="version", version=metadata.version("guided-collapse"))
    parser.add_argument("--traceback", action="store_true", help="on an error, also show where in the code it happened")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND", dest="command")
    for name, summary in COMMANDS.items():
        # Flags are the command's own: to this parser nothing looks like one.
        commands.add_parser(name, help=summary, add_help=False, prefix_chars="\0").add_argument("words", nargs="*")
    request = parser.parse_args(arguments)
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        for category in (DeprecationWarning, FutureWarning):
            warnings.simplefilter("ignore", category)  # of the libraries beneath, for their developers
        return _status(request.command, request.words, show_traceback=request.traceback)


def _status(command: str, words: list[str], *, show_traceback: bool) -> int:
    try:
        # Its module may need a package that is missing.
        run: Callable[[list[str]], int] = import_module(f"guided_collapse.experiments.cli.{command}").run
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
        # A package that is missing is one that the request needs.
        return WRONG_REQUEST if isinstance(error, RequestError | ModuleNotFoundError) else FAILED
    except KeyboardInterrupt:
        print(
            "guided-collapse: interrupted; what was written is whole, and a run goes on from its last checkpoint.", file=sys.stderr
        )
        return INTERRUPTED
    return status


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    print(f"guided-collapse: warning: {' '.join(str(message).split())}", file=sys.stderr)
