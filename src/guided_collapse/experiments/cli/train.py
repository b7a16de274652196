"""`guided-collapse train [PRESET] FLAGS`."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from guided_collapse.experiments.cli.command import DONE
from guided_collapse.experiments.cli.requests import checked, parsed, split_words, starting_point
from guided_collapse.experiments.configuration import Configuration
from guided_collapse.experiments.configuration import Placement


@dataclass(frozen=True)
class TrainRequest:
    """Train one run, or continue it if it was begun. Name an experiment, or give --data with a folder of your own images."""

    configuration: Configuration
    placement: Placement


def run(words: list[str]) -> int:
    """Trains one configuration, from where it is."""
    return carried_out(train_request(*split_words(words)))


def train_request(name: str | None, flags: Sequence[str]) -> TrainRequest:
    """What `train [PRESET] FLAGS` asks for.

    Raises:
        RequestError: for an unknown preset or head, neither preset nor data, or flags that do not fit together.
    """
    default = TrainRequest(starting_point(name, flags), Placement())
    wanted = parsed(default, f"train {name or '[PRESET]'}", flags)
    return replace(wanted, configuration=checked(wanted.configuration, wanted.placement, flags, [wanted.configuration.head]))


def carried_out(request: TrainRequest) -> int:
    """Trains, prints the run's folder in the first of several processes, and returns the exit status."""
    import torch.distributed as dist

    from guided_collapse.experiments.training.loop import train

    run = train(request.configuration, request.placement)
    if not (dist.is_available() and dist.is_initialized() and dist.get_rank() > 0):
        print(run.path)
    return DONE
