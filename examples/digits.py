"""Trains three heads on scikit-learn's handwritten digits, with the same batches, and prints what came of it."""

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

from guided_collapse import AGD, Classifier, FixedETFHead, Head, LinearHead, NearestETFHead, StratifiedBatchSampler

EPOCHS = 20
MEASURED = (1, 2, 5, 10, 20)
HEADS = {
    "standard": lambda: LinearHead(64, 10, centre=True),
    "fixed": lambda: FixedETFHead(64, 10),
    "implicit": lambda: NearestETFHead(64, 10),
}


def data() -> list[Tensor]:
    digits = load_digits()
    split = train_test_split(digits.data / 16.0, digits.target, test_size=0.3, random_state=0, stratify=digits.target)
    inputs, test_inputs, labels, test_labels = (torch.from_numpy(part) for part in split)
    return [inputs.float(), labels, test_inputs.float(), test_labels]


@torch.no_grad()
def accuracy(model: Classifier, inputs: Tensor, labels: Tensor) -> float:
    model.eval()
    return float((model(inputs).argmax(dim=1) == labels).double().mean())


def train(head: Head, inputs: Tensor, labels: Tensor, test_inputs: Tensor, test_labels: Tensor) -> tuple[Classifier, list[float]]:
    backbone = nn.Sequential(nn.Linear(64, 128, bias=False), nn.ReLU(), nn.Linear(128, 64, bias=False))
    model = Classifier(backbone, head)
    optimiser = AGD(model.parameters(), gain=10.0)
    optimiser.init_weights(torch.Generator().manual_seed(0))
    sampler = StratifiedBatchSampler(labels, batch_size=128)
    measured = []
    for epoch in range(1, EPOCHS + 1):
        sampler.set_epoch(epoch)
        model.train()
        for batch in sampler:
            loss = nn.functional.cross_entropy(model(inputs[batch], labels[batch]), labels[batch])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        if epoch in MEASURED:
            measured.append(accuracy(model, test_inputs, test_labels))
    return model, measured


def main() -> None:
    torch.manual_seed(0)
    inputs, labels, test_inputs, test_labels = data()
    print(f"Handwritten digits: {len(labels)} to train on, {len(test_labels)} held out; one seed, AGD with gain 10.\n")
    print("held-out accuracy after epoch  " + "  ".join(f"{epoch:5d}" for epoch in MEASURED))
    for name, head in HEADS.items():
        model, measured = train(head(), inputs, labels, test_inputs, test_labels)
        print(f"{name:30} " + "  ".join(f"{100 * value:4.1f}%" for value in measured))
    exported = model.export()
    with torch.no_grad():
        difference = float((exported(test_inputs) - model(test_inputs)).abs().max())
    layers = " -> ".join(str(layer) for layer in exported[1])
    print(f"\nThe last head, exported to stock torch layers: {layers}\nIts logits differ by at most {difference:.0e}.")


if __name__ == "__main__":
    main()
