"""`guided-collapse resume RUN_DIR FLAGS`."""

from pathlib import Path

from guided_collapse.cli.requests import first_word, resume_request
from guided_collapse.cli.status import DONE
from guided_collapse.cli.train import print_once


def run(words: list[str]) -> int:
    """Goes on with a run, which may be asked to become longer."""
    folder, flags = first_word(words)
    wanted = resume_request(None if folder is None else Path(folder), flags)
    from guided_collapse.training.loop import train

    print_once(train(wanted.configuration, wanted.placement).path)
    return DONE
