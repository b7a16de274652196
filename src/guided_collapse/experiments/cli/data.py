"""`guided-collapse data NAME`."""

import argparse
from pathlib import Path

from guided_collapse.experiments.errors import requested
from guided_collapse.experiments.cli.command import DONE


def run(words: list[str]) -> int:
    """Downloads a data set."""
    from guided_collapse.experiments.data.known import KNOWN

    description = "Download a data set or say how to get it, check its files, and print where it is."
    parser = argparse.ArgumentParser(prog="guided-collapse data", description=description)
    parser.add_argument("name", metavar="NAME", help=f"name of the data set: {', '.join(KNOWN)}")
    parser.add_argument(
        "--data-root",
        metavar="DIR",
        type=Path,
        help="folder of all data sets; by default $GUIDED_COLLAPSE_DATA, or a folder in the user's cache",
    )
    parser.add_argument("--from", dest="archive", metavar="FILE", type=Path, help="an archive of it that you already have")
    request = parser.parse_args(words)
    from guided_collapse.experiments.data.download import download

    with requested():
        found = download(request.name, root=request.data_root, archive=request.archive)
    print(found)
    return DONE
