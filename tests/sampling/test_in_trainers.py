"""The sampler in other libraries' trainers."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from guided_collapse import StratifiedBatchSampler
from tests.processes import results_of_two_processes

pytestmark = [pytest.mark.documentation, pytest.mark.slow]

LABELS = torch.arange(97) % 4

ACCELERATE_WORKER = """
import os, sys, torch
rank, meeting_point, folder = int(sys.argv[1]), sys.argv[2], sys.argv[3]
os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
torch.distributed.init_process_group("gloo", init_method=f"file://{meeting_point}", rank=rank, world_size=2)
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset
from guided_collapse import StratifiedBatchSampler
accelerator = Accelerator(cpu=True)
assert accelerator.num_processes == 2
labels = torch.arange(97) % 4
loader = DataLoader(TensorDataset(torch.arange(97)), batch_sampler=StratifiedBatchSampler(labels, 20))
refusal = ""
try:
    accelerator.prepare(loader)
except ValueError as error:
    refusal = str(error)
batches = [batch.to(accelerator.device) for (batch,) in loader]
torch.save({"refusal": refusal, "batches": batches}, f"{folder}/rank-{rank}.pt")
torch.distributed.destroy_process_group()
"""


def test_accelerate_does_not_shard_the_batches_again(tmp_path):
    results = results_of_two_processes(ACCELERATE_WORKER, tmp_path)
    for result in results:
        assert "prepare only model and optimizer" in result["refusal"]
    seen = torch.cat([batch for result in results for batch in result["batches"]])
    assert seen.sort().values.tolist() == list(range(97))
    assert all(9 <= len(batch) <= 10 for result in results for batch in result["batches"])


def test_accelerate_accepts_the_loader_of_one_process():
    from accelerate import Accelerator

    loader = DataLoader(TensorDataset(torch.arange(97)), batch_sampler=StratifiedBatchSampler(LABELS, 20))
    prepared = Accelerator(cpu=True).prepare(loader)
    orders = [torch.cat([batch for (batch,) in prepared]).tolist() for _ in range(2)]
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(97))
    assert orders[0] != orders[1]


@pytest.mark.filterwarnings("ignore:.*LeafSpec.*is deprecated", "ignore:.*does not have many workers")
def test_lightning_reshuffles_every_epoch():
    import pytorch_lightning as pl

    class Recorder(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer, self.orders = nn.Linear(1, 1), {}

        def training_step(self, batch, _):
            self.orders.setdefault(self.current_epoch, []).extend(batch[0].tolist())
            return self.layer(batch[0].float()[:, None]).mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.0)

    module, sampler = Recorder(), StratifiedBatchSampler(LABELS, 20)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = pl.Trainer(max_epochs=3, accelerator="cpu", use_distributed_sampler=False, **quiet)
    trainer.fit(module, DataLoader(TensorDataset(torch.arange(97)), batch_sampler=sampler))
    for epoch, order in module.orders.items():
        sampler.set_epoch(epoch)
        assert order == [index for batch in sampler for index in batch]
    assert len(module.orders) == 3
