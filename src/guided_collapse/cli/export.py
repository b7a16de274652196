"""`guided-collapse export RUN_DIR --to FILE`."""

import argparse
from pathlib import Path

from guided_collapse.cli.status import DONE


def run(words: list[str]) -> int:
    """Writes the inference model of a run."""
    description = "Writes the inference model of a finished run: images from 0 to 1 in, logits out, in stock operations."
    parser = argparse.ArgumentParser(prog="guided-collapse export", description=description)
    parser.add_argument("run_folder", metavar="RUN_DIR", type=Path)
    parser.add_argument("--to", metavar="FILE", type=Path, required=True, help="ends in .onnx, .pt2 or .safetensors")
    request = parser.parse_args(words)
    from guided_collapse.training.export import export_run
    from guided_collapse.training.folder.run import RunFolder

    export_run(RunFolder(request.run_folder), request.to)
    print(request.to)
    return DONE
