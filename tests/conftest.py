import pytest
import torch
from hypothesis import settings

from guided_collapse.data.known import KNOWN

# The same examples in every run.
settings.register_profile("deterministic", derandomize=True, deadline=None, database=None)
settings.load_profile("deterministic")


@pytest.fixture(autouse=True)
def _one_thread_and_seeded():
    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.fixture
def _made_up_data_pass_for_real(monkeypatch):
    """Runs take a small made-up data set for the real one of its name."""
    for known in KNOWN.values():
        for file in list(known.checksums):
            monkeypatch.delitem(known.checksums, file)


# Files that start processes of their own take longest for their number of tests: they go first, so that none is left at the end.
SLOW = (
    "test_two_processes",
    "test_presets",
    "test_kill",
    "test_docs",
    "test_processes",
    "test_cli",
    "test_page_in_browser",
    "test_nearest",
)


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: next((rank for rank, name in enumerate(SLOW) if item.path.stem.startswith(name)), len(SLOW)))
