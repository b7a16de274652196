"""The command `guided-collapse`."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from guided_collapse.metrics.collapse import measure_collapse
from guided_collapse.metrics.files import read_arrays
from guided_collapse.metrics.statistics import GlobalMean

DONE, WRONG_REQUEST = 0, 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status: 0 done, 2 the request was wrong.

    Args:
        arguments: None takes those of the process.
    """
    parser = argparse.ArgumentParser(prog="guided-collapse", description="Classifier heads at the nearest simplex ETF.")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    add_measure(commands)
    request = parser.parse_args(arguments)
    try:
        status: int = request.run(request)
    except (ValueError, MemoryError, RuntimeError) as error:
        print(f"guided-collapse: {' '.join(str(error).split())}", file=sys.stderr)
        return WRONG_REQUEST
    return status


def add_measure(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command `measure FILE`."""
    parser = commands.add_parser(
        "measure",
        help="how collapsed features are, from a file",
        description="Prints the neural-collapse metrics of the arrays features (N, d) and labels (N,) in FILE, and of "
        "weight (C, d), bias (C,), test_features and test_labels if it has them.",
    )
    parser.add_argument("file", metavar="FILE", type=Path, help="an .npz or .safetensors file")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--margins", action="store_true", help="with --json: all sorted cosine margins too")
    parser.add_argument(
        "--num-classes", type=int, help="the number of classes, if it is more than the labels show; a weight shows it too"
    )
    parser.add_argument(
        "--global-mean",
        choices=get_args(GlobalMean),
        default="samples",
        help="the global mean is that of the samples (default) or of the class means",
    )
    parser.add_argument("--centre-weight", action="store_true", help="centre the weights before NC2, NC3, equinorm and angles")
    parser.set_defaults(run=measure)


def measure(request: argparse.Namespace) -> int:
    """Prints the metrics of a file."""
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
