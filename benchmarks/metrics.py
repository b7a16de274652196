"""Time of the metrics relative to public scripts and to one matrix product, features.T @ features, within one run.

    OMP_NUM_THREADS=2 python benchmarks/metrics.py

The scripts are reimplemented from these files, on given features, without the model, data loading and printing:

- the paper's: nc/validate_NC.py and nc/utils.py of github.com/evanmarkou/Guiding-Neural-Collapse (00cdf29). A loop over samples
  fills a dictionary of class sums and another of lists of samples. S_W class by class from the lists, pinv of S_B for NC1 and of
  S_T for VCI, an SVD per class for the numerical rank, differences to all class means for NC4, margins class by class.
- sample by sample: validate_NC.py of github.com/tding1/Neural-Collapse (0106f93, Zhu et al. 2021). Class sums in a similar loop,
  S_W from one outer product per sample, pinv of S_B; no VCI, rank, NC4 or margins.
- batch by batch: measurements.py of github.com/mariuslindegaard/neuralcollapse-master (434a139). Class by class in each batch, S_W
  from a stack of outer products, NC4 sample by sample, svds of S_B; no VCI, rank or margins.

Many public repositories have copies of the last two. `measure_collapse` computes all metrics of the three scripts, and more.
"""

import statistics
import time
from collections.abc import Callable

import numpy as np
import scipy.linalg
import scipy.sparse.linalg
import torch
from torch import Tensor

from guided_collapse.metrics.measure import measure_collapse
from guided_collapse.metrics.streaming import CollapseMetrics

SIZES = ((50_000, 512, 10), (20_000, 2048, 1000))
REPETITIONS = 7
STREAMED_BATCH, SCRIPT_BATCH = 512, 128


def paper_script(features: Tensor, labels: Tensor, weight: Tensor, bias: Tensor) -> dict[str, float]:
    means: dict[int, Tensor] = {}
    samples: dict[int, list[np.ndarray]] = {}
    for some_features, some_labels in batches(features, labels, size=SCRIPT_BATCH):
        for b in range(len(some_labels)):
            y = some_labels[b].item()
            if y not in means:
                means[y], samples[y] = some_features[b].clone(), [some_features[b].numpy()]
            else:
                means[y] += some_features[b]
                samples[y].append(some_features[b].numpy())
    for y in means:
        means[y] /= len(samples[y])
    all_means, center = torch.stack([means[y] for y in range(len(weight))]), features.mean(dim=0)
    disagreements = 0
    for (some_features,) in batches(features, size=SCRIPT_BATCH):
        predictions = (some_features @ weight.T + bias).argmax(dim=1)
        distances = torch.linalg.norm(some_features.unsqueeze(1) - all_means.unsqueeze(0), dim=-1)
        disagreements += int((distances.argmin(dim=1) != predictions).sum())
    within = torch.zeros(features.shape[1], features.shape[1])
    for y, rows in samples.items():
        for (part,) in batches(torch.from_numpy(np.array(rows)), size=SCRIPT_BATCH):
            within += torch.einsum("bi, bj->ij", part - means[y], part - means[y])
    within = (within / len(labels)).numpy()
    between = between_classes(means, center)
    ranks = []
    for rows in samples.values():
        values = scipy.linalg.svd(np.array(rows), compute_uv=False)
        ranks.append((values.sum() / np.linalg.norm(np.array(rows))) ** 2)
    directions, margins = weight - weight.mean(dim=0), []
    for y, rows in samples.items():
        for (part,) in batches(torch.from_numpy(np.array(rows)), size=SCRIPT_BATCH):
            points = part - center
            cosines = points @ directions.T / (points.norm(dim=1, keepdim=True) * directions.norm(dim=1))
            others = cosines.clone()
            others[:, y] = -torch.inf
            margins.append((cosines[:, y] - others.amax(dim=1)).numpy())
    rank = min(features.shape[1], len(means) - 1)
    return frame_metrics(weight, bias, means, center) | {
        "nc1": np.trace(within @ scipy.linalg.pinv(between)) / len(means),
        "vci": 1 - np.trace(scipy.linalg.pinv(within + between) @ between) / rank,
        "nc4": disagreements / len(labels),
        "numerical_rank": float(np.mean(ranks)),
        "mean_cosine_margin": float(np.sort(np.concatenate(margins)).mean()),
    }


def sample_script(features: Tensor, labels: Tensor, weight: Tensor, bias: Tensor) -> dict[str, float]:
    means: dict[int, Tensor] = {}
    for some_features, some_labels in batches(features, labels, size=SCRIPT_BATCH):
        for b in range(len(some_labels)):
            y = some_labels[b].item()
            if y not in means:
                means[y] = some_features[b].clone()
            else:
                means[y] += some_features[b]
    counts = torch.bincount(labels, minlength=len(weight))
    for y in means:
        means[y] /= counts[y]
    within = torch.zeros(features.shape[1], features.shape[1])
    for some_features, some_labels in batches(features, labels, size=SCRIPT_BATCH):
        for b in range(len(some_labels)):
            y = some_labels[b].item()
            within += (some_features[b] - means[y]).unsqueeze(1) @ (some_features[b] - means[y]).unsqueeze(0)
    center = features.mean(dim=0)
    inverse = scipy.linalg.pinv(between_classes(means, center))
    nc1 = np.trace((within / len(labels)).numpy() @ inverse) / len(means)
    return frame_metrics(weight, bias, means, center) | {"nc1": nc1}


def batch_script(features: Tensor, labels: Tensor, weight: Tensor, bias: Tensor) -> dict[str, float]:
    num_classes = len(weight)
    sums, counts = torch.zeros_like(weight), torch.zeros(num_classes, 1)
    for some_features, some_labels in batches(features, labels, size=SCRIPT_BATCH):
        for c in range(num_classes):
            own = some_features[(some_labels == c).nonzero(as_tuple=True)[0]]
            sums[c] += own.sum(dim=0)
            counts[c] += len(own)
    means = sums / counts
    within, disagreements = torch.zeros(features.shape[1], features.shape[1]), 0
    for some_features, some_labels in batches(features, labels, size=SCRIPT_BATCH):
        predictions = (some_features @ weight.T + bias).argmax(dim=1)
        for c in range(num_classes):
            indices = (some_labels == c).nonzero(as_tuple=True)[0]
            if len(indices) == 0:
                continue
            own = some_features[indices]
            deviations = own - means[c]
            within += torch.matmul(deviations.unsqueeze(-1), deviations.unsqueeze(1)).sum(dim=0)
            nearest = torch.stack([torch.norm(row - means, dim=1) for row in own]).argmin(dim=1)
            disagreements += int((nearest != predictions[indices]).sum())
    center = means.mean(dim=0)
    centered = means - center
    vectors, values, _ = scipy.sparse.linalg.svds((centered.T @ centered / num_classes).numpy(), k=num_classes - 1)
    inverse = vectors @ np.diag(1 / values) @ vectors.T
    nc1 = np.trace((within / len(labels)).numpy() @ inverse) / num_classes
    return frame_metrics(weight, bias, dict(enumerate(means)), center) | {"nc1": nc1, "nc4": disagreements / len(labels)}


def between_classes(means: dict[int, Tensor], center: Tensor) -> np.ndarray:
    between = torch.zeros(len(center), len(center))
    for y in means:
        between += (means[y] - center).unsqueeze(1) @ (means[y] - center).unsqueeze(0)
    return (between / len(means)).numpy()


def frame_metrics(weight: Tensor, bias: Tensor, means: dict[int, Tensor], center: Tensor) -> dict[str, float]:
    num_classes = len(weight)
    target = (torch.eye(num_classes) - 1 / num_classes) / (num_classes - 1) ** 0.5
    centered = torch.stack([means[y] - center for y in range(num_classes)])
    gram, dual = weight @ weight.T, weight @ centered.T
    variations = [rows.norm(dim=1).std() / rows.norm(dim=1).mean() for rows in (weight, centered)]
    return {
        "nc2": float((gram / gram.norm() - target).norm()),
        "nc3": float((dual / dual.norm() - target).norm()),
        "bias_collapse": float((weight @ center + bias).norm()),
        "equinorm": float((variations[0] - variations[1]).abs()),
    }


def batches(*arrays: Tensor, size: int) -> zip:
    return zip(*(array.split(size) for array in arrays), strict=True)


def stream(features: Tensor, labels: Tensor, num_classes: int) -> None:
    metrics = CollapseMetrics(features.shape[1], num_classes)
    for some_features, some_labels in batches(features, labels, size=STREAMED_BATCH):
        metrics.update(some_features, some_labels)
    metrics.compute()


def seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def main() -> None:
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, median of {REPETITIONS} interleaved runs; scripts once")
    for num_samples, feature_dim, num_classes in SIZES:
        generator = torch.Generator().manual_seed(0)
        means = torch.randn(num_classes, feature_dim, generator=generator)
        labels = torch.randint(num_classes, (num_samples,), generator=generator)
        features = means[labels] + torch.randn(num_samples, feature_dim, generator=generator)
        weight, bias = means + torch.randn(num_classes, feature_dim, generator=generator), torch.zeros(num_classes)
        compare(features, labels, weight, bias)


def compare(features: Tensor, labels: Tensor, weight: Tensor, bias: Tensor) -> None:
    result = measure_collapse(features, labels, weight, bias)
    rounds = [
        (
            seconds(lambda: features.T @ features),
            seconds(lambda: measure_collapse(features, labels, weight, bias)),
            seconds(lambda: stream(features, labels, len(weight))),
        )
        for _ in range(REPETITIONS)
    ]
    product, ours, streamed = (statistics.median(times) for times in zip(*rounds, strict=True))
    print(f"\n{len(features)} x {features.shape[1]}, {len(weight)} classes")
    print(f"  the product, float32     {product:8.3f} s")
    print(f"  measure_collapse         {ours:8.3f} s   {ours / product:6.2f} products")
    print(f"  CollapseMetrics, pass 1  {streamed:8.3f} s   {streamed / product:6.2f} products, batches of {STREAMED_BATCH}")
    for name, script in (("the paper's", paper_script), ("sample by sample", sample_script), ("batch by batch", batch_script)):
        start = time.perf_counter()
        found = script(features, labels, weight, bias)
        taken = time.perf_counter() - start
        print(f"  {f'script, {name}':<24} {taken:8.2f} s   {taken / ours:6.1f} times measure_collapse", flush=True)
        print("   ", ", ".join(f"{field} {value:.6g} ({getattr(result, field):.6g})" for field, value in found.items()))


if __name__ == "__main__":
    main()
