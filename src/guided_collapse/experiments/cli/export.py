"""`guided-collapse export RUN_DIR --to FILE`."""

import argparse
from pathlib import Path

from guided_collapse.experiments.cli.command import DONE


def run(words: list[str]) -> int:
    """Writes the inference model of a run."""
    description = "Write the model of a finished run for use without this package: images with values in 0 to 1 in, logits out."
    parser = argparse.ArgumentParser(prog="guided-collapse export", description=description)
    parser.add_argument("run_folder", metavar="RUN_DIR", type=Path, help="folder of the run")
    parser.add_argument("--to", metavar="FILE", type=Path, required=True, help="output file: .onnx, .pt2 or .safetensors")
    request = parser.parse_args(words)
    from guided_collapse.experiments.training.export import export_run
    from guided_collapse.experiments.training.folder.run import RunFolder

    export_run(RunFolder(request.run_folder), request.to)
    print(request.to)
    return DONE
