"""Cross-tests of embedding models: queries of one model in the gallery of another model, by exact search in blocks."""

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from guided_collapse.heads.anchored import AnchoredHead
from guided_collapse.heads.checks import LABEL_TYPES, largest_finite
from guided_collapse.metrics.embeddings import Embeddings, embeddings_of
from guided_collapse.metrics.intervals import error_of_difference
from guided_collapse.metrics.measure import Loader

Stored = Mapping[str, tuple[Tensor, Tensor]]
SCORES_AT_ONCE, ENTRIES_AT_ONCE = 2**24, 2**23
"""Maximum numbers of cosines and of entries of embeddings in memory at a time: a few hundred megabytes in total."""
WIDTH, MOST_KS_SHOWN = 100, 5
Z = 1.96  # of 95% intervals


@dataclass(frozen=True)
class RetrievalResult:
    """How well queries find items of their own class in a gallery. Created by `retrieval`.

    Example:
        >>> import torch
        >>> from guided_collapse import retrieval
        >>> result = retrieval(torch.eye(2), torch.tensor([0, 7]), torch.eye(2), torch.tensor([0, 1]), ks=[2])
        >>> result.top1, result.recall, result.num_queries, result.num_unmatched
        (1.0, {1: 1.0, 2: 1.0}, 1, 1)
    """

    recall: dict[int, float]  # by k: the fraction of queries with an item of their class among the k nearest
    mean_average_precision: float  # over the ranking of the whole gallery
    num_queries: int  # queries with items of their class in the gallery
    num_unmatched: int  # queries without such items, which are left out
    num_items: int  # items in the gallery
    chance: float  # expected top-1 if the nearest item were random

    @property
    def top1(self) -> float:
        """The fraction of queries whose nearest item is of their class."""
        return self.recall[1]

    def scalars(self, prefix: str = "") -> dict[str, float]:
        """Returns top-1, recall and mAP by name, for loggers, with a prefix such as "test/"."""
        recall = {f"{prefix}recall_at_{k}": value for k, value in self.recall.items() if k > 1}
        return {f"{prefix}top1": self.top1, **recall, f"{prefix}mean_average_precision": self.mean_average_precision}


@torch.no_grad()
def retrieval(
    queries: Tensor, query_labels: Tensor, gallery: Tensor, gallery_labels: Tensor, *, ks: Sequence[int] = (1, 5, 10)
) -> RetrievalResult:
    """Measures how well queries find items of their class in a gallery, by cosine similarity and exact search.

    Recall@k is the fraction of queries with an item of their class among the k nearest. A query's average precision is
    sum_n (R_n - R_(n-1)) P_n over the ranking of the whole gallery (scikit-learn's `average_precision_score`), and mAP is its mean.

    The order of the gallery does not matter: items with equal cosines enter the average precision together, and for recall@k, items
    of other classes come first among equal cosines. Cosines are computed in float64 and rounded to float32, so that equal
    embeddings tie exactly.

    Args:
        queries: (num_queries, feature_dim), of any norm. Queries, gallery and labels may be tensors or NumPy arrays.
        query_labels: (num_queries,), integers. Queries without an item of their class in the gallery are left out, and counted in
            `num_unmatched`.
        gallery: (num_items, feature_dim), of any norm.
        gallery_labels: (num_items,), integers.
        ks: the k of recall@k; 1 is always included.

    Raises:
        TypeError, ValueError: if the inputs do not fit each other or are not finite, or if no query has an item of its class.

    Example:
        >>> import torch
        >>> from guided_collapse import retrieval
        >>> gallery, labels = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]]), torch.tensor([0, 1, 1])
        >>> result = retrieval(gallery[1:2], labels[1:2], gallery, labels, ks=(1, 2))
        >>> result.top1, round(result.mean_average_precision, 4)
        (1.0, 0.8333)
    """
    queries, query_labels = _checked(queries, query_labels, "queries", "query_labels")
    gallery, gallery_labels = _checked(gallery, gallery_labels, "gallery", "gallery_labels")
    if queries.shape[1] != gallery.shape[1]:
        raise ValueError(
            "queries and gallery must have the same feature_dim; "
            f"got {queries.shape[1]} and {gallery.shape[1]}. Give the newer model a neck to the gallery's width."
        )
    if not all(isinstance(k, int) and k >= 1 for k in ks):
        raise ValueError(f"ks must be positive integers; got {list(ks)}.")
    classes, counts = gallery_labels.unique(return_counts=True)  # type: ignore[no-untyped-call]
    ends = counts.cumsum(0)
    spans = dict(zip(classes.tolist(), zip((ends - counts).tolist(), ends.tolist(), strict=True), strict=True))
    rows = torch.isin(query_labels, classes).nonzero().flatten()
    if len(rows) == 0:
        raise ValueError("at least one query must have an item of its class in the gallery; got none. Check the labels.")
    # Sorted by class, so that the items of a class are contiguous.
    items = _unit(gallery[gallery_labels.argsort(stable=True)])
    precisions, wrong_before = np.empty(len(rows)), np.empty(len(rows), dtype=np.int64)
    step = max(1, min(SCORES_AT_ONCE // len(items), ENTRIES_AT_ONCE // items.shape[1]))
    for start in range(0, len(rows), step):
        block = rows[start : start + step]
        cosines = _cosines(_unit(queries[block]), items).numpy()
        # numpy sorts values without indices, which is more than ten times as fast as torch on a CPU.
        ranked = np.sort(cosines, axis=1)
        for row, label in enumerate(query_labels[block].tolist()):
            right = np.sort(cosines[row, slice(*spans[label])])
            # For each item of the query's class: how many items of the class, and how many items in all, have at least its cosine.
            right_above = len(right) - np.searchsorted(right, right)
            all_above = len(items) - np.searchsorted(ranked[row], right)
            precisions[start + row] = (right_above / all_above).mean()
            wrong_before[start + row] = all_above[-1] - right_above[-1]
    recall = {k: float((wrong_before < k).mean()) for k in sorted({1, *ks})}
    chance = counts[torch.searchsorted(classes, query_labels[rows])].double().mean() / len(items)
    return RetrievalResult(recall, float(precisions.mean()), len(rows), len(queries) - len(rows), len(items), float(chance))


def _unit(embeddings: Tensor) -> Tensor:
    """Returns the embeddings divided by their norms, in float32; in blocks, to save memory."""
    parts = embeddings.split(max(1, ENTRIES_AT_ONCE // embeddings.shape[1]))  # type: ignore[no-untyped-call]
    return torch.cat([functional.normalize(part.to(torch.float64), dim=1).to(torch.float32) for part in parts])


def _cosines(queries: Tensor, items: Tensor) -> Tensor:
    """Returns the inner products of queries with items, (num_queries, num_items), computed in float64 and rounded to float32."""
    cosines = torch.empty(len(queries), len(items), dtype=torch.float32)
    queries, step = queries.to(torch.float64), max(1, ENTRIES_AT_ONCE // items.shape[1])
    for start in range(0, len(items), step):
        cosines[:, start : start + step] = queries @ items[start : start + step].to(torch.float64).T
    return cosines


@dataclass(frozen=True)
class CompatibilityResult:
    """Cross-tests of several generations of a model. Created by `compatibility`; `print` and notebooks show a table.

    `tests["new", "old"]` is the result for the new model's queries in the old model's gallery. To switch models without
    embedding the gallery again, the top-1 of this test must exceed that of `tests["old", "old"]`.

    Example:
        >>> import torch
        >>> from guided_collapse import compatibility
        >>> stored = torch.eye(3), torch.tensor([0, 1, 2])
        >>> result = compatibility(["old", "new"], {"old": stored}, {"old": stored, "new": (torch.eye(3).flip(0), stored[1])})
        >>> round(result.tests["new", "old"].top1, 2), result.average_compatibility
        (0.33, 0.0)
        >>> result.verdict.partition(": ")[2]
        'embed that gallery again, keep using old, or try a map or another frame and scale.'
    """

    models: tuple[str, ...]  # oldest first
    tests: dict[tuple[str, str], RetrievalResult]  # by the models that embedded the queries and the gallery

    @property
    def average_compatibility(self) -> float | None:
        """AC = 2/(T(T-1)) sum_(i>j) [M(i,j) > M(j,j)]: the fraction of older galleries in which newer queries do better.

        M(i,j) is the top-1 of model i's queries in model j's gallery, and T the number of models (Biondi et al., "CoReS",
        2023). Equal top-1 does not count as better. Pairs that were not tested are left out; None if no pair was tested.
        """
        gains = [self.tests[pair].top1 > self.tests[pair[1], pair[1]].top1 for pair in self._upgrades()]
        return sum(gains) / len(gains) if gains else None

    @property
    def average_multimodel_accuracy(self) -> float:
        """AM = 2/(T(T+1)) sum_(i>=j) M(i,j): the mean top-1 of queries in the galleries of their own and older models.

        M, T and the reference are those of `average_compatibility`. Pairs that were not tested are left out.
        """
        return sum(test.top1 for test in self.tests.values()) / len(self.tests)

    @property
    def verdict(self) -> str:
        """Sentences that say whether older galleries can stay once the newest model embeds the queries."""
        found = [self._sentence(query, gallery) for query, gallery in self._upgrades() if query == self.models[-1]]
        return " ".join(found) or "No gallery was tested with queries of both its own model and the newest one."

    def scalars(self, prefix: str = "") -> dict[str, float]:
        """Returns all numbers by name, such as "new/old/top1", for loggers, with a prefix such as "test/"."""
        found = {f"{prefix}average_multimodel_accuracy": self.average_multimodel_accuracy}
        if self.average_compatibility is not None:
            found[f"{prefix}average_compatibility"] = self.average_compatibility
        for (query, gallery), test in self.tests.items():
            found |= test.scalars(f"{prefix}{query}/{gallery}/")
        return found

    def __str__(self) -> str:
        table = self._table()
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        # Long names share the width that the numbers leave.
        longest = (WIDTH - 2 * len(widths) - sum(widths[2:])) // 2
        lines = []
        for row in table:
            names = (name if len(name) <= longest else f"{name[: longest - 1]}…" for name in row[:2])
            cells = [f"{name:<{min(width, longest)}}" for name, width in zip(names, widths, strict=False)]
            lines.append("  " + "  ".join([*cells, *(f"{cell:>{width}}" for cell, width in zip(row[2:], widths[2:], strict=True))]))
        return "\n".join([self._heading(), *lines, *(textwrap.fill(remark, WIDTH) for remark in self._remarks())])

    def _repr_html_(self) -> str:
        header, *rows = ([escape(cell) for cell in row] for row in self._table())
        lines = [f"<tr><th>{'</th><th>'.join(header)}</th></tr>"]
        lines += [f'<tr><td align="left">{row[0]}</td><td align="left">{"</td><td>".join(row[1:])}</td></tr>' for row in rows]
        remarks = "".join(f"<p>{escape(remark)}</p>" for remark in self._remarks())
        return f"<table><caption>{escape(self._heading())}</caption>{''.join(lines)}</table>{remarks}"

    def _heading(self) -> str:
        return f"queries of {len(self.models)} models in each other's galleries, in %"

    def _table(self) -> list[list[str]]:
        ks = list(next(iter(self.tests.values())).recall)[:MOST_KS_SHOWN]
        table = [["queries", "gallery", "items", *("top-1" if k == 1 else f"recall@{k}" for k in ks), "mAP"]]
        for names, test in self.tests.items():
            values = (*(test.recall[k] for k in ks), test.mean_average_precision)
            table.append([*names, str(test.num_items), *(_percent(value) for value in values)])
        return table

    def _remarks(self) -> Iterator[str]:
        if self.average_compatibility is not None:
            averages = f"average compatibility (AC) {self.average_compatibility:.2f}"
            yield f"{averages}, average multi-model accuracy (AM) {_percent(self.average_multimodel_accuracy)}"
        if unmatched := max(test.num_unmatched for test in self.tests.values()):
            yield f"up to {unmatched} queries without an item of their class in the gallery are left out"
        yield self.verdict

    def _upgrades(self) -> list[tuple[str, str]]:
        """Returns the keys of tests with newer queries in an older gallery that was also tested with queries of its own model."""
        return [(query, gallery) for query, gallery in self.tests if query != gallery and (gallery, gallery) in self.tests]

    def _sentence(self, query: str, gallery: str) -> str:
        new, old = self.tests[query, gallery], self.tests[gallery, gallery]
        compared = f"{_percent(new.top1)} % with queries of {query}, and {_percent(old.top1)} % with those of {gallery}"
        said = f"Top-1 in the gallery of {gallery} is {compared}"
        if old.top1 <= old.chance + Z * math.sqrt(old.chance * (1 - old.chance) / old.num_queries):
            return f"{said}, which is no better than chance: check that queries, gallery and labels belong together."
        half = Z * error_of_difference(new.top1, old.top1, old.num_queries)
        if new.top1 > old.top1 + half:
            so = "that gallery can stay"
        elif new.top1 < old.top1 - half:
            so = f"embed that gallery again, keep using {gallery}, or try a map or another frame and scale"
        else:
            so = f"a draw, because {old.num_queries:,} queries do not resolve less than {_percent(half)} points"
        if (query, query) in self.tests:
            so += f". With a new gallery it is {_percent(self.tests[query, query].top1)} %"
        return f"{said}: {so}."


def compatibility(
    models: Mapping[str, nn.Module] | Sequence[str],
    gallery: Loader | Stored,
    queries: Loader | Stored,
    *,
    ks: Sequence[int] = (1, 5, 10),
) -> CompatibilityResult:
    """Cross-tests models: runs `retrieval` for the queries of each model in its own gallery and in the galleries of older models.

    If a model has an `AnchoredHead` with a center, the galleries are assumed to be centered: the embeddings of models without such
    a head, computed from a loader, are centered by the same constant. Stored embeddings are used as they are.

    Args:
        models: the models by name, oldest first, as `embeddings_of` takes them; or names only, if all embeddings are stored.
        gallery: a loader of (inputs, labels) that every model embeds; or, for existing galleries, the stored embeddings and labels
            by the name of the model that made them, for some or all models.
        queries: a loader or stored embeddings, as for `gallery`. The samples must be the same for all models.
        ks: as for `retrieval`.

    Raises:
        TypeError, ValueError: as for `retrieval`; also for names that are not in `models`, and if there is nothing to test.

    Example:
        >>> import torch
        >>> from guided_collapse import AnchoredHead, Classifier, compatibility
        >>> old = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
        >>> loader = [(torch.randn(12, 4), torch.arange(12) % 3)]
        >>> new = Classifier(torch.nn.Linear(4, 8), AnchoredHead.from_model(old, loader))
        >>> result = compatibility({"old": old, "new": new}, gallery=loader, queries=loader)
        >>> list(result.tests)
        [('old', 'old'), ('new', 'old'), ('new', 'new')]
    """
    names = list(models)
    stored = {side: _stored(models, source, side) for side, source in (("gallery", gallery), ("queries", queries))}
    labels = {name: torch.as_tensor(found[1]).sort().values for name, found in stored["queries"].items()}
    for name, found in labels.items():
        if not torch.equal(found, next(iter(labels.values()))):
            raise ValueError(
                f"queries must be the same samples for all models; got different labels for {name} and {next(iter(labels))}. "
                "Embed the same data by both."
            )
    pairs = [(query, older) for place, query in enumerate(names) for older in names[: place + 1]]
    tests = {}
    for query, older in pairs:
        if query in stored["queries"] and older in stored["gallery"]:
            try:
                tests[query, older] = retrieval(*stored["queries"][query], *stored["gallery"][older], ks=ks)
            except (TypeError, ValueError) as error:
                raise type(error)(f"queries of {query} in the gallery of {older}: {error}") from error
    if not tests:
        raise ValueError(f"queries must come from a gallery's model or a newer one; got none for {', '.join(names)}.")
    return CompatibilityResult(tuple(names), tests)


def _stored(models: Mapping[str, nn.Module] | Sequence[str], source: Any, side: str) -> Stored:
    """Returns embeddings and labels by model name, computed if the source is a loader."""
    if isinstance(source, Mapping):
        if unknown := [name for name in source if name not in models]:
            raise ValueError(f"{side} must be named after models: {', '.join(models)}; got {', '.join(map(str, unknown))}.")
        return source
    if not isinstance(models, Mapping):
        raise TypeError(f"models must be given to embed the {side}; got names only. Pass the models, or stored embeddings by name.")
    centers = {name: [head.center for head in model.modules() if isinstance(head, AnchoredHead)] for name, model in models.items()}
    center = next((center for found in centers.values() for center in found if center is not None), None)
    found = {name: embeddings_of(model, source) for name, model in models.items()}
    for name, (embeddings, labels) in found.items():
        if center is not None and all(own is None for own in centers[name]):
            found[name] = Embeddings(functional.normalize(embeddings - center.to(embeddings), dim=1), labels)
    return found


def _checked(embeddings: Any, labels: Any, name: str, labels_name: str) -> tuple[Tensor, Tensor]:
    """Returns the embeddings and the labels as tensors on the CPU, after validation."""
    embeddings, labels = (torch.as_tensor(value).detach().cpu() for value in (embeddings, labels))
    if not embeddings.is_floating_point():
        raise TypeError(f"{name} must be floating-point; got {embeddings.dtype}.")
    if embeddings.ndim != 2 or 0 in embeddings.shape:
        raise ValueError(
            f"{name} must be a matrix (num_samples, feature_dim) with at least one row; got {tuple(embeddings.shape)}."
        )
    if labels.dtype not in LABEL_TYPES:
        raise TypeError(f"{labels_name} must be integers, int8 to int64 or uint8; got {labels.dtype}.")
    if labels.shape != embeddings.shape[:1]:
        raise ValueError(f"{labels_name} must be ({len(embeddings)},), one per row of {name}; got {tuple(labels.shape)}.")
    largest_finite(embeddings, name)
    return embeddings, labels.to(torch.int64)


def _percent(value: float) -> str:
    return f"{100 * value:.2f}"
