"""The command `guided-collapse`.

A command imports what it needs itself, and what is slow to import only when its request is understood: help and wrong flags are
answered at once.
"""

import argparse
import errno
import json
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path

DONE, FAILED, WRONG_REQUEST, INTERRUPTED, NOBODY_READS = 0, 1, 2, 130, 141

# A place that the user named is not there, is of another kind, or is not theirs. Every other error of the system came on the way.
WRONG_PLACE = frozenset(
    {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG}
)


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
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for add in (add_list, add_train, add_compare, add_resume, add_report, add_cost, add_data, add_export, add_measure):
        add(commands)
    request = parser.parse_args(arguments)
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        for category in (DeprecationWarning, FutureWarning):
            warnings.simplefilter("ignore", category)  # of the libraries beneath, for their developers
        return _status(request)


def _status(request: argparse.Namespace) -> int:
    try:
        status: int = request.run(request)
        sys.stdout.flush()  # while a reader that has gone can still be seen to
    except BrokenPipeError:
        # What is left in the buffer would fail once more when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return NOBODY_READS
    except (ValueError, ModuleNotFoundError, MemoryError, RuntimeError, OSError) as error:
        if request.traceback:
            traceback.print_exc()
        print(f"guided-collapse: {_words(error)}", file=sys.stderr)
        return WRONG_REQUEST if _is_of_the_request(error) else FAILED
    except KeyboardInterrupt:
        print(
            "guided-collapse: interrupted; what was written is whole, and a run goes on from its last checkpoint.", file=sys.stderr
        )
        return INTERRUPTED
    return status


def _is_of_the_request(error: Exception) -> bool:
    if isinstance(error, OSError):
        return error.errno in WRONG_PLACE
    return isinstance(error, (ValueError, ModuleNotFoundError))


def _words(error: Exception) -> str:
    """What an error says, on one line."""
    text = " ".join(str(error).split())
    if isinstance(error, ModuleNotFoundError):
        return f"{text}. Run: pip install 'guided-collapse[experiments]'"
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "allocate" in text):
        found = f" ({text})" if text else ""
        return f"memory ran out{found}. Make the batch or the network smaller, or take a machine with more memory."
    if isinstance(error, OSError) and error.strerror:
        return error.strerror if error.filename is None else f"{error.strerror}: {error.filename}"
    return text or type(error).__name__


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    print(f"guided-collapse: warning: {' '.join(str(message).split())}", file=sys.stderr)


def _add(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]",
    name: str,
    summary: str,
    description: str,
    run: Callable[[argparse.Namespace], int],
) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=summary, description=description)
    parser.set_defaults(run=run)
    return parser


def _add_with_flags(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]",
    name: str,
    summary: str,
    run: Callable[[str | None, list[str]], int],
) -> None:
    """Adds a command with one word, perhaps, and flags that are not for this parser, to which nothing looks like a flag."""
    parser = commands.add_parser(name, help=summary, add_help=False, prefix_chars="\0")
    parser.add_argument("words", nargs="*")

    def run_words(request: argparse.Namespace) -> int:
        words = list(request.words)
        first = words.pop(0) if words and not words[0].startswith("-") else None
        return run(first, words)

    parser.set_defaults(run=run_words)


def add_list(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command `list`."""
    _add(commands, "list", "the experiments and the heads", "Prints the names of all experiments and heads.", list_names)


def list_names(_: argparse.Namespace) -> int:
    """Prints the names of experiments and heads."""
    from guided_collapse.experiments.presets import PRESETS
    from guided_collapse.training.configuration import HEADS

    for name, configuration in PRESETS.items():
        what = f"{configuration.backbone}, {configuration.epochs} epochs, batch {configuration.batch_size}"
        print(f"{name:20} {configuration.data:15} {what}")
    print(f"\nheads: {', '.join(HEADS)}")
    return DONE


def add_train(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command `train [PRESET]`."""
    _add_with_flags(commands, "train", "one run: train PRESET --head H --seed K, or train --data FOLDER", train_one)


def train_one(preset: str | None, flags: list[str]) -> int:
    """Trains one configuration, from where it is."""
    from guided_collapse.experiments.requests import train_request

    wanted = train_request(preset, flags)
    from guided_collapse.training.loop import train

    run = train(wanted.configuration, wanted.placement)
    _print_once(run.path)
    return DONE


def _print_once(path: Path) -> None:
    """Prints in the first of several processes."""
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized() and dist.get_rank() > 0):
        print(path)


def add_compare(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command `compare [PRESET]`."""
    _add_with_flags(commands, "compare", "heads over seeds: compare PRESET --heads H1 H2 --seeds K1 K2", compare_heads)


def compare_heads(preset: str | None, flags: list[str]) -> int:
    """Runs the grid and prints its table."""
    from guided_collapse.experiments.requests import compare_request

    wanted = compare_request(preset, flags)
    from guided_collapse.data.known import check_source
    from guided_collapse.experiments.compare import compare, comparison_table
    from guided_collapse.report.write import write_report
    from guided_collapse.training.launch import check_launch

    # Once, instead of a failure of every run.
    check_launch(wanted.placement, wanted.configuration.precision)
    if not wanted.configuration.is_unconstrained:
        check_source(wanted.configuration.data)
    comparison = compare(wanted.configuration, wanted.heads, wanted.seeds, wanted.placement)
    if comparison.finished:
        print(comparison_table(comparison))
        folder = wanted.placement.out / wanted.configuration.experiment
        print(f"\n{write_report([folder], folder / 'report').page}")
    for run, reason in comparison.failed:
        print(f"failed: {run.path}: {reason}", file=sys.stderr)
    return FAILED if comparison.failed else DONE


def add_resume(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command `resume RUN_DIR`."""
    _add_with_flags(commands, "resume", "goes on with a run from its last checkpoint: resume RUN_DIR", resume)


def resume(folder: str | None, flags: list[str]) -> int:
    """Goes on with a run, which may be asked to become longer."""
    from guided_collapse.experiments.requests import resume_request

    wanted = resume_request(None if folder is None else Path(folder), flags)
    from guided_collapse.training.loop import train

    _print_once(train(wanted.configuration, wanted.placement).path)
    return DONE


def add_report(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command `report RUNS... --out DIR`."""
    description = "Writes a page, tables and figures from the records of all runs below the folders; loads no model."
    parser = _add(commands, "report", "a page, tables and figures of runs", description, report)
    parser.add_argument("runs", metavar="RUNS", type=Path, nargs="+", help="folders with runs, at any depth")
    parser.add_argument("--out", metavar="DIR", type=Path, required=True, help="the folder to write to")
    parser.add_argument(
        "--epochs", type=int, nargs="+", help="epochs of the tables (default: 50 200, or the last if runs are shorter)"
    )


def report(request: argparse.Namespace) -> int:
    """Writes a report, which has failed in part if records could not be used."""
    from guided_collapse.report.write import write_report

    summary = write_report(request.runs, request.out, epochs=request.epochs)
    print(summary.page)
    return FAILED if summary.skipped else DONE


def add_cost(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command `cost PRESET`."""
    _add_with_flags(commands, "cost", "time and memory of a training step for each head: cost PRESET", cost)


def cost(preset: str | None, flags: list[str]) -> int:
    """Measures and prints what the heads cost."""
    from guided_collapse.experiments.requests import cost_request

    configuration, wanted = cost_request(preset, flags)
    from guided_collapse.experiments.cost import measure_cost
    from guided_collapse.records.cost import read_cost
    from guided_collapse.report.cost_tables import cost_table
    from guided_collapse.report.tables import plain_text

    file = measure_cost(configuration, wanted)
    table = cost_table([read_cost(file)])
    if table is not None:
        print(plain_text(table))
    print(file)
    return DONE


def add_data(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command `data NAME`."""
    description = "Fetches a data set or says how to get it, checks it, and says where it is."
    parser = _add(commands, "data", "gets a data set", description, fetch_data)
    parser.add_argument("name", metavar="NAME", help="digits, mnist, fashion-mnist, cifar10, cifar100, stl10 or imagenet")
    parser.add_argument("--data-root", type=Path, help="the folder of all data sets")


def fetch_data(request: argparse.Namespace) -> int:
    """Fetches a data set."""
    from guided_collapse.data.fetch import fetch

    print(fetch(request.name, root=request.data_root))
    return DONE


def add_export(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command `export RUN_DIR --to FILE`."""
    description = "Writes the inference model of a finished run: images from 0 to 1 in, logits out, in stock operations."
    parser = _add(commands, "export", "the inference model of a run", description, export)
    parser.add_argument("run_folder", metavar="RUN_DIR", type=Path)
    parser.add_argument("--to", metavar="FILE", type=Path, required=True, help="ends in .onnx, .pt2 or .safetensors")


def export(request: argparse.Namespace) -> int:
    """Writes the inference model of a run."""
    from guided_collapse.training.export import export_run
    from guided_collapse.training.run import RunFolder

    export_run(RunFolder(request.run_folder), request.to)
    print(request.to)
    return DONE


def add_measure(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command `measure FILE`."""
    description = (
        "Prints the neural-collapse metrics of the arrays features (N, d) and labels (N,) in FILE, and of "
        "weight (C, d), bias (C,), test_features and test_labels if it has them."
    )
    parser = _add(commands, "measure", "how collapsed features are, from a file", description, measure)
    parser.add_argument("file", metavar="FILE", type=Path, help="an .npz or .safetensors file")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--margins", action="store_true", help="with --json: all sorted cosine margins too")
    parser.add_argument(
        "--num-classes", type=int, help="the number of classes, if it is more than the labels show; a weight shows it too"
    )
    parser.add_argument(
        "--global-mean",
        choices=("samples", "classes"),
        default="samples",
        help="the global mean is that of the samples (default) or of the class means",
    )
    parser.add_argument("--centre-weight", action="store_true", help="centre the weights before NC2, NC3, equinorm and angles")


def measure(request: argparse.Namespace) -> int:
    """Prints the metrics of a file."""
    if request.margins and not request.json:
        raise ValueError("--margins is for JSON; got it without --json, where it would be without effect. Add --json.")
    from guided_collapse.metrics.collapse import measure_collapse
    from guided_collapse.metrics.files import read_arrays

    arrays = read_arrays(request.file)
    result = measure_collapse(
        *arrays[:4],
        num_classes=request.num_classes,
        test_features=arrays.test_features,
        test_labels=arrays.test_labels,
        global_mean=request.global_mean,
        centre_weight=request.centre_weight,
    )
    if not request.json:
        print(result)
        return DONE
    values = result.to_dict()
    if not request.margins:
        del values["cosine_margins"]
    print(json.dumps(values, indent=2, allow_nan=False))
    return DONE


if __name__ == "__main__":
    sys.exit(main())
