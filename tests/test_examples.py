"""The example scripts run, and show what they say. In processes of their own: faiss brings its own OpenMP."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

UPGRADE = """
import sys
from pathlib import Path
import torch
from examples.upgrade_index import WIDTH, digits, upgrade, write_index
from guided_collapse import Classifier, retrieval

found = upgrade(Path(sys.argv[1]))
assert found["new model, nn.Linear"] < 0.5 < found["old model"] < found["new model, anchored"] - 0.1, found

# What the index finds is what an exact search finds.
import faiss
index, data = faiss.read_index(str(Path(sys.argv[1], "gallery.index"))), digits()
stored = index.reconstruct_n(0, index.ntotal)
queries = torch.randn(50, WIDTH)
nearest = data["gallery"][1][torch.from_numpy(index.search(queries.numpy(), 1)[1][:, 0])]
assert retrieval(queries, nearest, stored, data["gallery"][1]).top1 == 1.0
"""


@pytest.mark.slow
def test_a_new_model_searches_the_index_file_of_the_old_one(tmp_path):
    subprocess.run([sys.executable, "-W", "error", "-c", UPGRADE, str(tmp_path)], check=True, cwd=ROOT)
    assert [file.name for file in tmp_path.iterdir()] == ["gallery.index"]
