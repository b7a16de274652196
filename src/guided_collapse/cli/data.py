"""`guided-collapse data NAME`."""

import argparse
from pathlib import Path

from guided_collapse.cli.status import DONE


def run(words: list[str]) -> int:
    """Downloads a data set."""
    from guided_collapse.data.known import KNOWN

    description = "Downloads a data set or says how to get it, checks it, and says where it is."
    parser = argparse.ArgumentParser(prog="guided-collapse data", description=description)
    parser.add_argument("name", metavar="NAME", help=f"one of {', '.join(KNOWN)}")
    parser.add_argument("--data-root", type=Path, help="the folder of all data sets")
    parser.add_argument("--from", dest="archive", metavar="FILE", type=Path, help="an archive of it that you have already")
    request = parser.parse_args(words)
    from guided_collapse.data.download import download

    print(download(request.name, root=request.data_root, archive=request.archive))
    return DONE
