import pytest
import torch
from hypothesis import settings

# The same examples in every run.
settings.register_profile("deterministic", derandomize=True, deadline=None, database=None)
settings.load_profile("deterministic")


@pytest.fixture(autouse=True)
def _one_thread_and_seeded():
    torch.set_num_threads(1)
    torch.manual_seed(0)
