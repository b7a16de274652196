"""`guided-collapse train [PRESET] FLAGS`."""

from pathlib import Path

from guided_collapse.cli.requests import first_word, train_request
from guided_collapse.cli.status import DONE


def run(words: list[str]) -> int:
    """Trains one configuration, from where it is."""
    wanted = train_request(*first_word(words))
    from guided_collapse.training.loop import train

    print_once(train(wanted.configuration, wanted.placement).path)
    return DONE


def print_once(path: Path) -> None:
    """Prints in the first of several processes."""
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized() and dist.get_rank() > 0):
        print(path)
