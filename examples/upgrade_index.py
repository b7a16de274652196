"""Swaps the model behind a vector index without rebuilding the index.

    pip install faiss-cpu scikit-learn
    python examples/upgrade_index.py

An old model that knows five of ten handwritten digits writes a gallery of all ten to an index file. Then two larger models learn
all ten, one as usual and one anchored at the old model's class means, and search the same file.
"""

import sys
import tempfile
from pathlib import Path

import faiss
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from guided_collapse import AnchoredHead, Classifier

WIDTH = 32  # of the index


def digits() -> dict[str, tuple[Tensor, Tensor]]:
    """Images and labels: 1000 for training, 397 for the gallery and 400 queries."""
    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0)).split((1000, 397, 400))
    images, labels = torch.tensor(images).float(), torch.tensor(labels)
    return {name: (images[part], labels[part]) for name, part in zip(("train", "gallery", "queries"), order, strict=True)}


def backbone(width: int, outputs: int) -> nn.Module:
    """Raw pixels to features."""
    return nn.Sequential(nn.BatchNorm1d(64), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, outputs), nn.ReLU())


def trained(model: Classifier, images: Tensor, labels: Tensor) -> Classifier:
    """The model after 30 epochs, in eval mode."""
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(30):
        for inputs, targets in DataLoader(TensorDataset(images, labels), batch_size=100, shuffle=True):
            loss = nn.functional.cross_entropy(model(inputs), targets)
            optimizer.zero_grad(), loss.backward(), optimizer.step()
    return model.eval()


@torch.no_grad()
def write_index(model: Classifier, images: Tensor, file: Path) -> None:
    """Writes the embeddings of the gallery to an index for inner products, which are cosines here."""
    index = faiss.IndexFlatIP(WIDTH)
    index.add(model.embed(images).numpy())
    faiss.write_index(index, str(file))


@torch.no_grad()
def recall(model: Classifier, file: Path, data: dict[str, tuple[Tensor, Tensor]]) -> float:
    """The fraction of queries whose nearest item in the index is of their class."""
    images, labels = data["queries"]
    _, nearest = faiss.read_index(str(file)).search(model.embed(images).numpy(), 1)
    return (data["gallery"][1][torch.from_numpy(nearest[:, 0])] == labels).float().mean().item()


def upgrade(folder: Path) -> dict[str, float]:
    """Writes the index to the folder, and returns the recall of every model that searches it."""
    torch.manual_seed(0)
    data, file = digits(), folder / "gallery.index"
    images, labels = data["train"]
    known = labels < 5
    old = trained(Classifier(backbone(64, WIDTH), nn.Linear(WIDTH, 5)), images[known], labels[known])
    write_index(old, data["gallery"][0], file)
    plain = trained(Classifier(backbone(256, WIDTH), nn.Linear(WIDTH, 10)), images, labels)
    head = AnchoredHead.from_model(old, [data["train"]], scale=12.0)  # all ten classes; the old model saw five
    anchored = trained(Classifier(backbone(256, 128), head, neck=128), images, labels)  # 128 features to the index's 32
    models = {"old model": old, "new model, nn.Linear": plain, "new model, anchored": anchored}
    return {name: recall(model, file, data) for name, model in models.items()}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made_up:
        for name, value in upgrade(Path(sys.argv[1] if len(sys.argv) > 1 else made_up)).items():
            print(f"{name:<22} recall@1 in the old model's index: {value:.3f}")
