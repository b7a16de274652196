"""The animated picture of the method, docs/collapse.svg, drawn from a training run on three of scikit-learn's digits.

    python -m results.picture

A small network with two features trains twice on the digits 0, 1 and 2, from the same initial weights: with `nn.Linear`, and with
`NearestETFHead`. Two features need no projection. The script takes a few seconds on a CPU.
"""

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from guided_collapse import Classifier, NearestETFHead, StratifiedBatchSampler, measure_collapse

PICTURE = Path(__file__).parent.parent / "docs" / "collapse.svg"
DIGITS = (0, 1, 2)
STEPS = (*range(1, 20), *range(20, 60, 2), *range(60, 101, 5))  # before the first step there is no frame to show
EVERY = 9  # one in this many samples is drawn
HELD, SECONDS = 20, 10  # number of repetitions of the last step, and duration of one cycle
SIZE, RADIUS = 300, 84  # of a panel, and of the circle, in pixels
COLORS = ("#d1495b", "#2a8fbd", "#c98a1b")
GRAY = "#7b828c"  # readable on white and on black


class Step(NamedTuple):
    """The content of a panel at one step: features and rows, centered and divided by their root mean square."""

    points: Tensor  # (num_samples, 2)
    class_means: Tensor  # (3, 2)
    rows: Tensor  # of the classifier, (3, 2)
    distance: float  # of the class means from the nearest simplex ETF, both with unit Frobenius norm


def digits() -> tuple[Tensor, Tensor]:
    """Returns the images of `DIGITS` as pixels from 0 to 1, (num_samples, 64), and their labels."""
    pixels, labels = (torch.from_numpy(array) for array in load_digits(return_X_y=True))
    known = labels < len(DIGITS)
    return pixels[known].float() / 16, labels[known]


def looked_at(model: Classifier, inputs: Tensor, labels: Tensor) -> Step:
    """Returns what a panel shows of a model, in eval mode."""
    model.eval()
    with torch.no_grad():
        points, rows = model.points(inputs), torch.as_tensor(model.head.weight)
        means = torch.stack([points[labels == label].mean(dim=0) for label in range(len(DIGITS))])
        centered, rows = points - means.mean(dim=0), rows - rows.mean(dim=0)
        size, size_of_rows = (value.square().sum(dim=1).mean().sqrt() for value in (centered, rows))
        squared = measure_collapse(points, labels).etf_distance
    model.train()
    assert squared is not None
    return Step(centered / size, (means - means.mean(dim=0)) / size, rows / size_of_rows, squared**0.5)


def train(model: Classifier, inputs: Tensor, labels: Tensor) -> list[Step]:
    """Trains the model and returns its state at each of `STEPS`."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    sampler = StratifiedBatchSampler(labels, batch_size=60)
    found: list[Step] = []
    step = epoch = 0
    while step < STEPS[-1]:
        sampler.set_epoch(epoch)
        for batch in map(torch.tensor, sampler):
            if step in STEPS:
                found.append(looked_at(model, inputs, labels))
            loss = nn.functional.cross_entropy(model(inputs[batch], labels[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
        epoch += 1
    return [*found, looked_at(model, inputs, labels)][: len(STEPS)]


def animated(name: str, values: Sequence[str], *, mode: str = "linear") -> str:
    """Returns the SVG animation of an attribute, which takes one value per step and keeps the last one for a while."""
    held = ";".join([*values, *[values[-1]] * HELD])
    return f'<animate attributeName="{name}" dur="{SECONDS}s" repeatCount="indefinite" calcMode="{mode}" values="{held}"/>'


def pixel(values: Tensor) -> list[str]:
    """Returns coordinates in pixels, as text."""
    return [f"{RADIUS * value:.0f}" for value in values.tolist()]


def dot(places: Tensor, style: str) -> str:
    """Returns a circle that moves through `places`, (num_steps, 2); the y axis of a picture points downward."""
    x, y = pixel(places[:, 0]), pixel(-places[:, 1])
    return f'<circle cx="{x[-1]}" cy="{y[-1]}" {style}>{animated("cx", x)}{animated("cy", y)}</circle>'


def shape(corners: Tensor, style: str) -> str:
    """Returns a polygon that jumps through `corners`, (num_steps, num_corners, 2).

    It does not move smoothly, because shapes halfway between two ETFs are not ETFs.
    """
    texts = [" ".join(f"{x},{y}" for x, y in zip(pixel(step[:, 0]), pixel(-step[:, 1]), strict=True)) for step in corners]
    return f'<polygon points="{texts[-1]}" {style}>{animated("points", texts, mode="discrete")}</polygon>'


def words(texts: Sequence[str], style: str) -> str:
    """Returns a line of text that changes from step to step."""
    lines = []
    for place, text in enumerate(texts):
        shown = [str(int(place == step)) for step in range(len(texts))]
        lines.append(f'<text {style} opacity="{shown[-1]}">{text}{animated("opacity", shown, mode="discrete")}</text>')
    return "\n".join(lines)


def panel(steps: Sequence[Step], labels: Tensor, title: str, left: int) -> str:
    """Returns a panel in SVG: samples, class means, and the rows of the classifier with the triangle between them."""
    points, means, rows = (torch.stack(values) for values in list(zip(*steps, strict=True))[:3])
    parts = [f'<g transform="translate({left + SIZE // 2} 165)">']
    parts.append(f'<circle r="{RADIUS}" fill="none" stroke="{GRAY}" stroke-opacity=".45" stroke-dasharray="2 4"/>')
    parts += [dot(points[:, sample], f'r="2" fill="{COLORS[labels[sample]]}" fill-opacity=".5"') for sample in range(len(labels))]
    parts.append(shape(rows, f'fill="none" stroke="{GRAY}" stroke-width="2.5" stroke-linejoin="round"'))
    for label, color in enumerate(COLORS):
        corners = torch.stack([torch.zeros_like(rows[:, label]), rows[:, label]], dim=1)
        parts.append(shape(corners, f'stroke="{color}" stroke-width="3" stroke-opacity=".8"'))
        parts.append(dot(means[:, label], f'r="7" fill="{color}" stroke="#fff" stroke-width="1.5"'))
    parts.append(f'<text y="-138" text-anchor="middle" font-size="17" font-weight="600">{title}</text>')
    texts = [f"{step.distance:.2f} from a simplex ETF" for step in steps]
    parts += [words(texts, 'y="146" text-anchor="middle"'), "</g>"]
    return "\n".join(parts)


def picture() -> str:
    """Returns the content of the SVG file."""
    inputs, labels = digits()
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 2))
    panels = []
    for left, title, head in ((0, "nn.Linear", nn.Linear(2, 3)), (SIZE, "NearestETFHead", NearestETFHead(2, 3))):
        steps = train(Classifier(copy.deepcopy(backbone), head), inputs, labels)
        shown = [step._replace(points=step.points[::EVERY]) for step in steps]
        panels.append(panel(shown, labels[::EVERY], title, left))
    step_of = words([f"step {step}" for step in STEPS], f'x="{SIZE}" y="338" text-anchor="middle"')
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {2 * SIZE} 376" width="{2 * SIZE}" role="img" '
            f'font-family="system-ui, sans-serif" font-size="14" fill="{GRAY}">',
            "<title>Two features of the digits 0, 1 and 2 during training, with nn.Linear and with NearestETFHead</title>",
            *panels,
            step_of,
            f'<text x="{SIZE}" y="364" text-anchor="middle" font-size="13">small dots: images; large dots: class means; '
            "lines and triangle: the classifier</text>",
            "</svg>\n",
        ]
    )


if __name__ == "__main__":
    PICTURE.write_text(picture())
