"""The example scripts and notebooks run, and show what they say. Each in its own process, because faiss brings its own OpenMP."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"

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


# What a notebook needs. Made-up queries in the format of CLINC150: the words of an intent in every order.
BEFORE = {
    "text": """
import itertools, json, pathlib
words = {"balance": "money left account", "timer": "minutes countdown alarm", "travel": "flight train hotel"}
test = [[" ".join(order), intent] for intent, own in words.items() for order in itertools.permutations(own.split())]
train = [[f"{start} {query}", intent] for query, intent in test for start in ("please", "my")]
others = [[query, "oos"] for query in ("sing a whale song", "purple clouds")]
pathlib.Path("clinc150.json").write_text(json.dumps({"train": train, "test": test, "oos_test": others}))
""",
}
# What each notebook shows, of the names that its cells leave.
SHOWN = {
    "train": """
assert min(map(accuracy, models.values())) > 90
for few_images in (results["Cosine"], results["Nearest ETF"]):
    assert sum(few_images) > sum(results["nn.Linear"])
assert torch.equal(plain(test_images).argmax(dim=1), model(test_images).argmax(dim=1))
""",
    "measure": """
first, last = results[1], results[100]
assert last.accuracy > 0.99 and last.test_accuracy > 0.9
for name in ("nc1", "nc2", "nc2_means", "nc3"):
    assert getattr(last, name) < getattr(first, name), name
assert abs(measure_collapse(features, labels[:1400]).nc1 - last.nc1) < 1e-4
""",
    "frames": """
assert min(map(max, accuracies.values())) > 75
assert torch.allclose(weight.norm(dim=1), torch.ones(10), atol=1e-5)
assert torch.allclose(weight.T @ weight / 5, torch.eye(2), atol=1e-2)
assert result.nc2 < 0.05
""",
    "text": """
for model in models.values():
    predicted = model(embed(["alarm countdown minutes", "account money left"])).argmax(dim=1)
    assert [intents[intent] for intent in predicted] == ["timer", "balance"]
assert largest.shape == (20,)
""",
}


def cells(name):
    """The code of a notebook, as one script."""
    notebook = json.loads((EXAMPLES / f"{name}.ipynb").read_text())
    return "\n".join("".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code")


@pytest.mark.documentation
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", SHOWN)
def test_a_notebook_runs_and_shows_what_it_says(name, tmp_path):
    environment = {**os.environ, "MPLBACKEND": "agg", "OMP_NUM_THREADS": "1"}
    script = BEFORE.get(name, "") + cells(name) + SHOWN[name]
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.ipynb")), ids=lambda file: file.stem)
def test_a_notebook_is_committed_with_its_output_and_without_an_error(file):
    outputs = [output for cell in json.loads(file.read_text())["cells"] for output in cell.get("outputs", [])]
    assert outputs
    assert not [output for output in outputs if output["output_type"] == "error" or output.get("name") == "stderr"]
