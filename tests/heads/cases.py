"""Every kind of head, and a small network to train with it."""

import copy
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor, nn

from guided_collapse import AnchoredHead, Classifier, CosineHead, FixedETFHead, Head, NearestETFHead, RunningClassMeans

Batch = tuple[Tensor, Tensor]
TrainingStep = Callable[[nn.Module, Tensor, Tensor], Tensor]


def anchored(feature_dim: int, num_classes: int, *, centered: bool = False) -> AnchoredHead:
    generator = torch.Generator().manual_seed(3)
    anchors = torch.randn(num_classes, feature_dim, generator=generator, dtype=torch.float32)
    if not centered:
        return AnchoredHead(anchors)
    return AnchoredHead(anchors, frame=0.5, center=torch.randn(feature_dim, generator=generator, dtype=torch.float32) / 8)


HEADS: dict[str, Callable[[int, int], Head]] = {
    "nearest-etf": NearestETFHead,
    "nearest-etf-detached": lambda *sizes: NearestETFHead(*sizes, implicit_gradient=False),
    "nearest-etf-lagged": lambda *sizes: NearestETFHead(*sizes, lagged=True),
    "nearest-etf-random": lambda *sizes: NearestETFHead(
        *sizes, direction="random", generator=torch.Generator().manual_seed(3), proximal_weight=0.0
    ),
    "fixed-etf": FixedETFHead,
    "fixed-etf-random": lambda *sizes: FixedETFHead(*sizes, direction="random", generator=torch.Generator().manual_seed(3)),
    "cosine": lambda *sizes: CosineHead(*sizes, generator=torch.Generator().manual_seed(3)),
    "cosine-centered": lambda *sizes: CosineHead(*sizes, center=True, generator=torch.Generator().manual_seed(3)),
    "anchored": anchored,
    "anchored-centered": lambda *sizes: anchored(*sizes, centered=True),
}

# More classes than dimensions: a tight frame.
MANY_CLASSES: dict[str, Callable[[int, int], Head]] = {
    "tight": lambda *sizes: NearestETFHead(*sizes, every=3),
    "tight-products": lambda *sizes: NearestETFHead(*sizes, every=2, solver="products"),
    "tight-not-lagged": lambda *sizes: NearestETFHead(*sizes, lagged=False),
    "tight-fixed": FixedETFHead,
    "tight-fixed-etf-random": HEADS["fixed-etf-random"],
}

ALL = {**HEADS, **MANY_CLASSES}

FEATURE_DIM, NUM_CLASSES, BATCH_SIZE = 12, 5, 20
MANY_FEATURE_DIM, MANY_NUM_CLASSES = 6, 30


def build(name: str, *, feature_dim: int | None = None, num_classes: int | None = None) -> Classifier:
    """A model with this head, with more classes than dimensions if it is one of MANY_CLASSES."""
    torch.manual_seed(1)
    usual_dim, usual_classes = (MANY_FEATURE_DIM, MANY_NUM_CLASSES) if name in MANY_CLASSES else (FEATURE_DIM, NUM_CLASSES)
    sizes = feature_dim or usual_dim, num_classes or usual_classes
    backbone = nn.Sequential(nn.Linear(8, 24), nn.Tanh(), nn.Linear(24, sizes[0]))
    return Classifier(backbone, ALL[name](*sizes))


def batches(num_steps: int, *, num_classes: int = NUM_CLASSES, batch_size: int = BATCH_SIZE, seed: int = 0) -> Iterator[Batch]:
    generator = torch.Generator().manual_seed(seed)
    centers = torch.randn(num_classes, 8, generator=generator)
    for _ in range(num_steps):
        labels = torch.randint(0, num_classes, (batch_size,), generator=generator)
        yield centers[labels] + 0.5 * torch.randn(batch_size, 8, generator=generator), labels


def mixed(inputs: Tensor, labels: Tensor, num_classes: int, share: Tensor) -> Batch:
    """A batch after mixup of each sample with its neighbor, with soft labels."""
    classes = nn.functional.one_hot(labels, num_classes).to(inputs.dtype)
    return share * inputs + (1 - share) * inputs.roll(1, dims=0), share * classes + (1 - share) * classes.roll(1, dims=0)


def mixed_batches(num_steps: int, num_classes: int) -> Iterator[Batch]:
    generator = torch.Generator().manual_seed(5)
    for inputs, labels in batches(num_steps, num_classes=num_classes):
        yield mixed(inputs, labels, num_classes, torch.rand(len(labels), 1, generator=generator))


def partly_left_out(num_steps: int, num_classes: int) -> Iterator[Batch]:
    """Batches with half of the labels ignored, as many at odd as at even positions, and all in the third batch."""
    for step, (inputs, labels) in enumerate(batches(num_steps, num_classes=num_classes)):
        labels[(torch.arange(len(labels)) + step) % 4 < (4 if step == 2 else 2)] = -100
        yield inputs, labels


class InputsOnly(nn.Module):
    """A third-party model whose forward pass takes only inputs, with a head as its last layer."""

    def __init__(self, name: str) -> None:
        super().__init__()
        classifier = build(name)
        self.body, self.last = classifier.backbone, classifier.head

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.last(self.body(inputs))
        return logits


def labels_in_the_call(model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    """The loss of a step, after its backward pass."""
    loss = nn.functional.cross_entropy(model(inputs, labels), labels)
    loss.backward()  # type: ignore[no-untyped-call]  # torch's own
    return loss


def step_before(head: Head) -> TrainingStep:
    """The same for a model that takes only inputs, with labels passed by `head.labels` before the forward pass."""

    def take_step(model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
        with head.labels(labels):
            loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    return take_step


def step_after(head: Head) -> TrainingStep:
    """The same with `head.update` after the backward pass."""

    def take_step(model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        head.update(labels)
        return loss

    return take_step


def train(
    model: nn.Module,
    steps: Iterable[Batch],
    optimizer: torch.optim.Optimizer | None = None,
    *,
    take_step: TrainingStep = labels_in_the_call,
) -> list[float]:
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model.train()
    losses = []
    for inputs, labels in steps:
        optimizer.zero_grad()
        losses.append(take_step(model, inputs, labels).item())
        optimizer.step()
    return losses


def trained_model(name: str) -> Classifier:
    """A model with this head after ten steps, in eval mode."""
    model = build(name)
    train(model, batches(10, num_classes=MANY_NUM_CLASSES if name in MANY_CLASSES else NUM_CLASSES))
    return model.eval()


def as_on_an_accelerator(head: Head) -> Head:
    """The head with the defaults of an accelerator."""
    for module in head.modules():
        if isinstance(module, Head | RunningClassMeans):
            module.check_values = False
    if isinstance(head, NearestETFHead):
        head.solver = "products"
    return head


def assert_same_state(found: nn.Module, expected: nn.Module, tolerance: float = 0.0, *, rtol: float = 0.0) -> None:
    """Compares state dicts after folding the factor of running class means into their rows."""
    found, expected = copy.deepcopy(found), copy.deepcopy(expected)
    for module in (*found.modules(), *expected.modules()):
        if isinstance(module, RunningClassMeans):
            module.value()
    assert found.state_dict().keys() == expected.state_dict().keys()
    for key, value in expected.state_dict().items():
        # Recomputed from the rows, because sums over all rows round differently from sums over a few.
        rounding = 1e-6 if key.endswith("row_squares") else 0.0
        torch.testing.assert_close(found.state_dict()[key], value, rtol=max(rtol, rounding), atol=tolerance)


def assert_same_gradients(found: nn.Module, expected: nn.Module, rtol: float, atol: float) -> None:
    for parameter, other in zip(found.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, other.grad, rtol=rtol, atol=atol)
