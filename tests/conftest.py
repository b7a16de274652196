import pytest
import torch
from hypothesis import settings

from guided_collapse.experiments.data.known import KNOWN

# The same examples in every run.
settings.register_profile("deterministic", derandomize=True, deadline=None, database=None)
settings.load_profile("deterministic")


@pytest.fixture(autouse=True)
def _one_thread_and_seeded():
    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.fixture
def _made_up_data_pass_for_real(monkeypatch):
    """Lets runs use a small made-up data set in place of the real one of that name."""
    for known in KNOWN.values():
        for file in list(known.checksums):
            monkeypatch.delitem(known.checksums, file)


@pytest.fixture
def _undrawn(monkeypatch):
    """Figures for print are created but not drawn, which would take seconds; for tests of the rest of a report."""
    from guided_collapse.experiments.report import figures

    monkeypatch.setattr(figures, "as_files", lambda figure, name: {f"{name}.pdf": b"", f"{name}.png": b""})


def pytest_collection_modifyitems(items):
    """Runs slow tests first, so that none of them is left at the end while the other worker idles."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
