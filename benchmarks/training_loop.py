"""Steps per second of the training loop relative to a bare loop with the same network, batches and optimizer.

    python -m benchmarks.training_loop

The preset cifar10-small with its augmentation, on random images of CIFAR-10's size. The bare loop has its images ready as
normalized floats and only runs forward, backward and step. The two loops alternate in one process; ratios are medians over turns.
"""

import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch
from lightning_fabric import Fabric

from benchmarks.cost import made_up_task
from guided_collapse import AGD
from guided_collapse.experiments.configuration import Placement
from guided_collapse.experiments.data.batches import ProcessShare
from guided_collapse.experiments.display import Display
from guided_collapse.experiments.loop import Training
from guided_collapse.experiments.presets import preset
from guided_collapse.experiments.run import RunFolder
from guided_collapse.experiments.tasks import build_model

NUM_IMAGES, TURNS = 2560, 9


def main() -> None:
    print(f"torch {torch.__version__}, {torch.get_num_threads()} thread(s), batches of 256, {TURNS} turns")
    for head in ("cosine", "nearest-etf"):
        configuration = replace(preset("cifar10-small"), head=head).resolved()
        task = made_up_task(configuration, NUM_IMAGES)
        steps = task.steps_per_epoch()
        with tempfile.TemporaryDirectory() as folder:
            training = Training(configuration, Placement(), RunFolder(Path(folder)), task, Fabric(accelerator="cpu"))
        model = build_model(configuration, task, torch.device("cpu"))
        optimizer = AGD(model.parameters(), gain=configuration.gain)
        optimizer.init_weights()
        bare_configuration = replace(configuration, flip=False, crop_padding=0)
        batches = list(made_up_task(bare_configuration, NUM_IMAGES).training_batches(1, ProcessShare()))

        def bare_turn(model=model, optimizer=optimizer, batches=batches) -> None:
            for inputs, labels in batches:
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(model(inputs, labels), labels).backward()
                optimizer.step()

        shares = []
        with Display("", 10**9, 0, quiet=True, silent=True) as display:
            for epoch in range(TURNS + 1):
                start = time.perf_counter()
                bare_turn()
                bare = time.perf_counter() - start
                start = time.perf_counter()
                training.train_epoch(epoch + 1, steps, display)
                ours = time.perf_counter() - start
                if epoch > 0:  # the first turn is warm-up
                    shares.append(bare / ours)
        rate = steps / ours
        middle, least, most = (f"{share:.1%}" for share in (statistics.median(shares), min(shares), max(shares)))
        print(f"{head:10} {rate:5.2f} steps/s, {middle} of the bare loop ({least} to {most})")


if __name__ == "__main__":
    main()
