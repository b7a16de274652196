"""Draws docs/frames.svg and prints its table: free features in three dimensions and the frame nearest to them.

python -m results.frames
"""

from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from guided_collapse import measure_collapse
from guided_collapse.geometry import nearest_frame, tight_frame_cross_entropy_bound

PICTURE = Path(__file__).parent.parent / "docs" / "frames.svg"
NAMES = {4: "tetrahedron", 6: "octahedron", 8: "square antiprism", 12: "icosahedron"}
SCALE, STEPS = 5.0, 300
VIEW = torch.linalg.matrix_exp(torch.tensor([[0, -0.2, 0.5], [0.2, 0, 0.35], [-0.5, -0.35, 0]]))


def train(num_classes: int) -> tuple[Tensor, Tensor, float]:
    """Returns the path of the class means, (steps, num_classes, 3), the final frame, (num_classes, 3), and the final loss."""
    features = torch.randn(num_classes, 3, generator=torch.Generator().manual_seed(1)).requires_grad_()
    optimizer = torch.optim.Adam([features], lr=0.05)
    path, basis = [], None
    for _ in range(STEPS):
        points = functional.normalize(features, dim=1)
        means = points.detach()
        found = nearest_frame(means - means.mean(dim=0), basis)
        basis = found.basis
        loss = functional.cross_entropy(SCALE * points @ found.weight.T, torch.arange(num_classes))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        path.append(means)
    return torch.stack(path), found.weight, float(loss.detach())


def row(path: Tensor, frame: Tensor, loss: float) -> list[str]:
    """Returns the cells of a run in the table: angles in degrees, margins and losses, each with its bound."""
    num_classes = len(frame)
    result = measure_collapse(path[-1], torch.arange(num_classes), frame)
    bound = tight_frame_cross_entropy_bound(3, num_classes, SCALE)
    # For more than 2d classes, the best margin is unknown, but at most 1.
    best_margin = 1.0 if result.ideal_cosine_margin is None else result.ideal_cosine_margin
    cells = (result.weight_angle, result.ideal_angle, result.class_margin, best_margin, loss, bound)
    return [str(num_classes), NAMES[num_classes], *(f"{cell:#.4g}" for cell in cells)]


def panel(path: Tensor, frame: Tensor, left: int) -> str:
    """Returns a frame in SVG: paths of the class means in orange, rows in blue, and gray lines between nearest rows."""

    def at(point: Tensor) -> str:
        across, up, _ = (VIEW @ point).tolist()
        return f"{left + 100 + 80 * across:.0f},{100 - 80 * up:.0f}"

    def strength(*points: Tensor) -> str:
        """Returns the opacity at the center of the points; objects farther back are paler."""
        return f"{0.7 + 0.3 * float((VIEW @ torch.stack(points).mean(dim=0))[2]):.2f}"

    distances = torch.cdist(frame, frame).fill_diagonal_(torch.inf)
    near = (distances <= 1.2 * distances.min()).triu().nonzero().tolist()
    lines = [f'<circle cx="{left + 100}" cy="100" r="80" stroke="#888" stroke-opacity="0.3"/>']
    for one, other in near:
        opacity = strength(frame[one], frame[other])
        lines.append(f'<path d="M{at(frame[one])}L{at(frame[other])}" stroke="#888" stroke-opacity="{opacity}"/>')
    for points in path.unbind(dim=1):
        moving = [point for point, after in zip(points[:-1:3], points[1::3], strict=False) if (point - after).norm() > 1e-3]
        lines.append(f'<path d="M{"L".join(at(point) for point in [*moving, points[-1]])}" stroke="#d55e00" stroke-width="1.5"/>')
    for point in sorted(frame.unbind(), key=lambda point: float((VIEW @ point)[2])):
        x, y = at(point).split(",")
        lines.append(f'<circle cx="{x}" cy="{y}" r="5" fill="#2f81c7" fill-opacity="{strength(point)}"/>')
    lines.append(
        f'<text x="{left + 100}" y="206" text-anchor="middle" fill="#888">{len(frame)} classes: {NAMES[len(frame)]}</text>'
    )
    return "\n".join(lines)


def draw(runs: list[tuple[Tensor, Tensor, float]]) -> str:
    """Returns the picture: a panel for each run."""
    heading = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 800 220" fill="none" font-family="sans-serif" font-size="14">'
    return "\n".join([heading, *(panel(path, frame, 200 * place) for place, (path, frame, _) in enumerate(runs)), "</svg>\n"])


if __name__ == "__main__":
    runs = [train(num_classes) for num_classes in NAMES]
    PICTURE.write_text(draw(runs))
    for run in runs:
        print(f"| {' | '.join(row(*run))} |")
