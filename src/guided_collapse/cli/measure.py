"""`guided-collapse measure FILE`."""

import argparse
import json
from pathlib import Path

from guided_collapse.cli.status import DONE


def run(words: list[str]) -> int:
    """Prints the metrics of a file."""
    request = _parser().parse_args(words)
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


def _parser() -> argparse.ArgumentParser:
    description = (
        "Prints the neural-collapse metrics of the arrays features (N, d) and labels (N,) in FILE, and of "
        "weight (C, d), bias (C,), test_features and test_labels if it has them."
    )
    parser = argparse.ArgumentParser(prog="guided-collapse measure", description=description)
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
    return parser
