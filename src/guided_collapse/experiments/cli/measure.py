"""`guided-collapse measure FILE`."""

import argparse
import json
from pathlib import Path

from guided_collapse.experiments.errors import RequestError, requested
from guided_collapse.experiments.cli.command import DONE


def run(words: list[str]) -> int:
    """Prints the metrics of a file."""
    request = _parser().parse_args(words)
    if request.margins and not request.json:
        raise RequestError("--margins needs --json; got it alone. Add --json.")
    from guided_collapse.metrics.collapse import measure_collapse
    from guided_collapse.metrics.files import read_arrays

    with requested():
        arrays = read_arrays(request.file)
        result = measure_collapse(
            *arrays[:4],
            num_classes=request.num_classes,
            test_features=arrays.test_features,
            test_labels=arrays.test_labels,
            global_mean=request.global_mean,
            center_weight=request.center_weight,
        )
    if not request.json:
        print(result)
        return DONE
    values = result.to_dict()
    if not request.margins:
        del values["cosine_margins"]
    print(json.dumps(values, indent=2, allow_nan=False))
    return DONE


def _parser() -> argparse.ArgumentParser:
    description = (
        "Print the neural collapse metrics of the features in FILE. It must hold the arrays features (N, d) and labels (N,), "
        "and may hold weight (C, d), bias (C,), test_features and test_labels."
    )
    parser = argparse.ArgumentParser(prog="guided-collapse measure", description=description)
    parser.add_argument("file", metavar="FILE", type=Path, help="file that ends in .npz or .safetensors")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--margins", action="store_true", help="with --json: also print all cosine margins, sorted")
    parser.add_argument("--num-classes", type=int, help="number of classes, if some have no samples and there is no weight to tell")
    parser.add_argument(
        "--global-mean",
        choices=("samples", "classes"),
        default="samples",
        help="take the global mean over all samples (default) or over the class means",
    )
    parser.add_argument("--center-weight", action="store_true", help="center the weights for NC2, NC3, equinorm and angles")
    return parser
