"""Retrieval and cross-tests against brute force with scikit-learn, their laws, what they print, and what they refuse."""

import copy
import math
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score
from sklearn.metrics.pairwise import cosine_similarity
from torch import nn

from guided_collapse import AnchoredHead, Classifier, CompatibilityResult, RetrievalResult, compatibility, embeddings_of, retrieval
from guided_collapse.metrics import cross_tests

KS = (1, 3, 10)


def case(seed):
    """Queries and a gallery with labels: of several sizes and types, every other one with many equal cosines."""
    generator = np.random.default_rng(seed)
    num_queries, num_items, feature_dim = generator.integers(1, 40), generator.integers(1, 150), generator.integers(1, 9)
    classes = generator.choice(1000, generator.integers(1, 9), replace=False)
    sides = []
    for size in (num_queries, num_items):
        labels = generator.choice(classes, size)
        # Cosines of vectors of four signs are exact, multiples of 1/2.
        vectors = generator.choice([-1.0, 1.0], (size, 4)) if seed % 2 else generator.normal(size=(size, feature_dim))
        sides += [vectors * generator.choice([0.5, 1.0, 4.0], (size, 1)), labels]
    sides[1][0] = sides[3][0]  # at least one query has an item
    dtype = (torch.float64, torch.float32)[seed % 3 == 0]
    return tuple(torch.as_tensor(side, dtype=dtype if side.ndim == 2 else None) for side in sides)


def by_brute_force(queries, query_labels, gallery, gallery_labels):
    """Recall by k and mAP from one sort for each query, wrong items first among equals."""
    scores = cosine_similarity(queries.double(), gallery.double()).astype(np.float32)
    hits, precisions = [], []
    for row, label in zip(scores, query_labels.numpy(), strict=True):
        right = gallery_labels.numpy() == label
        if right.any():
            hits.append(right[np.lexsort((right, -row))])
            precisions.append(average_precision_score(right, row))
    return {k: np.mean([hit[:k].any() for hit in hits]) for k in KS}, np.mean(precisions), len(precisions)


@pytest.mark.parametrize("seed", range(20))
def test_against_brute_force(seed, monkeypatch):
    data = case(seed)
    recall, precision, num_matched = by_brute_force(*data)
    for at_once in (cross_tests.SCORES_AT_ONCE, 7):
        monkeypatch.setattr(cross_tests, "SCORES_AT_ONCE", at_once)
        monkeypatch.setattr(cross_tests, "ENTRIES_AT_ONCE", at_once)
        found = retrieval(*data, ks=KS)
        assert found.recall == pytest.approx(recall, abs=1e-12)
        assert found.mean_average_precision == pytest.approx(precision, abs=1e-12)
        items, asked = (labels.tolist() for labels in (data[3], data[1]))
        matching = [items.count(label) / len(items) for label in asked if label in items]
        assert found.chance == pytest.approx(sum(matching) / len(matching))
        assert (found.num_queries, found.num_unmatched, found.num_items) == (num_matched, len(data[0]) - num_matched, len(data[2]))


def test_the_order_of_the_gallery_and_the_norms_do_not_matter():
    queries, query_labels, gallery, gallery_labels = case(1)
    expected = retrieval(queries, query_labels, gallery, gallery_labels)
    order = torch.randperm(len(gallery), generator=torch.Generator().manual_seed(0))
    norms = torch.rand(len(gallery), 1, generator=torch.Generator().manual_seed(1), dtype=gallery.dtype) + 0.5
    found = retrieval(3 * queries.numpy(), query_labels.int(), (gallery * norms)[order], gallery_labels[order])
    assert found == expected


@pytest.mark.parametrize("num_items", [7, 50, 1001])
def test_copies_of_an_item_have_its_rank_wherever_they_are(num_items):
    # In float32, products depend on the place in the matrix.
    generator = torch.Generator().manual_seed(0)
    gallery, queries = torch.randn(num_items, 33, generator=generator), torch.randn(4, 33, generator=generator)
    labels = torch.arange(3).repeat_interleave(num_items)  # of each item, one copy of each class
    for query in queries:
        found = retrieval(query[None], torch.tensor([1]), gallery.repeat(3, 1), labels, ks=(1, 2, 3))
        assert found.recall == {1: 0.0, 2: 0.0, 3: 1.0}
        assert found.mean_average_precision == pytest.approx(1 / 3, abs=1e-15)


def stored(seed, num_samples=40, feature_dim=6, noise=0.5):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(num_samples) % 4
    centers = torch.randn(4, feature_dim, generator=torch.Generator().manual_seed(9))
    return centers[labels] + noise * torch.randn(num_samples, feature_dim, generator=generator), labels


def made_up(**top1):
    """A result with these fractions of right nearest items, by names such as new_old."""
    tests = {
        tuple(pair.split("_")): RetrievalResult({1: value, 5: 1.0}, value / 2, 1000, 0, 100, 0.1) for pair, value in top1.items()
    }
    names = dict.fromkeys(name for pair in tests for name in pair)
    return CompatibilityResult(tuple(names), tests)


def test_averages_of_three_generations():
    result = made_up(a_a=0.5, b_a=0.6, b_b=0.7, c_a=0.5, c_b=0.8, c_c=0.9)
    assert result.average_compatibility == pytest.approx(2 / 3)
    assert result.average_multimodel_accuracy == pytest.approx((0.5 + 0.6 + 0.7 + 0.5 + 0.8 + 0.9) / 6)
    scalars = result.scalars("test/")
    assert scalars["test/c/b/top1"] == 0.8
    assert scalars["test/a/a/mean_average_precision"] == 0.25
    assert scalars["test/average_compatibility"] == result.average_compatibility
    assert made_up(a_a=0.5).average_compatibility is None
    assert "average_compatibility" not in made_up(a_a=0.5).scalars()


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (made_up(old_old=0.5, new_old=0.6, new_new=0.7), "of old is 60.00 % with queries of new, .* can stay. With .* 70.00 %"),
        (made_up(old_old=0.5, new_old=0.53), r"a draw, because 1,000 queries .* 4\.3\d points"),
        (made_up(old_old=0.5, new_old=0.45), "embed that gallery again"),
        (made_up(old_old=0.11, new_old=0.5), "no better than chance"),
        (made_up(old_old=0.5), "^No gallery"),
        (
            made_up(a_a=0.5, b_a=0.9, b_b=0.6, c_a=0.6, c_b=0.5),
            "^Top-1 in the gallery of a is 60.00 % .* can stay.* of b is 50.00 % .* again",
        ),
    ],
)
def test_the_verdict_compares_the_newest_model_with_each_older_one(result, words):
    assert re.search(words, result.verdict)


@pytest.mark.parametrize("length", [3, 70])
@pytest.mark.parametrize("ks", [(1,), (1, 5, 10), tuple(range(1, 12))])
def test_what_is_printed_fits_a_hundred_columns_and_html_is_escaped(length, ks):
    names = [f"{name * length}<b>" for name in "abc"]
    embedded = {name: stored(seed) for seed, name in enumerate(names)}
    result = compatibility(names, embedded, embedded, ks=ks)
    printed = str(result)
    assert max(map(len, printed.splitlines())) <= 100
    assert printed.count("\n  ") == 7
    for test in result.tests.values():
        assert f"{100 * test.mean_average_precision:.2f}" in printed
    shown = result._repr_html_()
    assert "<b>" not in shown
    assert shown.count("<tr>") == 7
    assert f"{100 * result.tests[names[2], names[0]].top1:.2f}" in shown


INPUTS, LABELS = stored(3, feature_dim=8)
LOADER = [(INPUTS[:25], LABELS[:25]), (INPUTS[25:], LABELS[25:])]


def networks():
    torch.manual_seed(0)
    old = nn.Sequential(nn.Linear(8, 10), nn.ReLU(), nn.Dropout(0.5), nn.Linear(10, 4))
    new = Classifier(nn.Linear(8, 20), AnchoredHead.from_model(old, LOADER), neck=20)
    return {"old": old, "new": new}


def test_models_with_loaders_give_what_their_embeddings_give():
    models = networks()
    queries = [(INPUTS[::2] + 0.1, LABELS[::2])]
    found = compatibility(models, LOADER, queries, ks=KS)
    assert list(found.tests) == [("old", "old"), ("new", "old"), ("new", "new")]
    for (query, gallery), test in found.tests.items():
        assert test == retrieval(*embeddings_of(models[query], queries[:1]), *embeddings_of(models[gallery], LOADER), ks=KS)
    assert models["old"].training
    # The gallery of the old model is there, its images are not.
    mixed = compatibility(models, {"old": embeddings_of(models["old"], LOADER)}, queries, ks=KS)
    assert mixed.tests == {pair: test for pair, test in found.tests.items() if pair[1] == "old"}


def test_all_models_are_centered_if_one_is():
    center = torch.linspace(-0.3, 0.3, 8)
    old = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
    new = Classifier(nn.Linear(8, 8), AnchoredHead.from_model(old, LOADER, center=center))
    embedded, labels = embeddings_of(old, LOADER)
    expected = nn.functional.normalize(embedded - center, dim=1), labels
    result = compatibility({"old": old, "new": new}, LOADER, LOADER)
    assert result.tests["old", "old"] == retrieval(*expected, *expected)
    assert result.tests["new", "old"] == retrieval(*embeddings_of(new, LOADER), *expected)


def test_the_same_network_with_anchors_gives_the_same_numbers_exactly():
    old = networks()["old"]
    new = Classifier(copy.deepcopy(old[:3]), AnchoredHead.from_model(old, LOADER, frame=0.5, scale=12.0))
    result = compatibility({"old": old, "new": new}, LOADER, [(INPUTS + 0.3, LABELS)])
    assert result.tests["new", "old"] == result.tests["old", "old"] == result.tests["new", "new"]
    assert result.average_compatibility == 0.0


GALLERY, CLASSES = stored(0)
BAD_DATA = {
    "other widths": ((GALLERY[:, :5], CLASSES, GALLERY, CLASSES), ValueError, "same feature_dim; got 5 and 6.*a neck"),
    "NaN": ((GALLERY * math.nan, CLASSES, GALLERY, CLASSES), ValueError, "queries must be finite"),
    "infinite": ((GALLERY, CLASSES, GALLERY / 0, CLASSES), ValueError, "gallery must be finite"),
    "integers": ((GALLERY, CLASSES, GALLERY.long(), CLASSES), TypeError, "gallery must be floating-point; got torch.int64"),
    "a vector": ((GALLERY[0], CLASSES, GALLERY, CLASSES), ValueError, r"queries must be a matrix.*got \(6,\)"),
    "no items": ((GALLERY, CLASSES, GALLERY[:0], CLASSES[:0]), ValueError, "gallery must be .* at least one row"),
    "too few labels": ((GALLERY, CLASSES[:3], GALLERY, CLASSES), ValueError, r"query_labels must be \(40,\).*got \(3,\)"),
    "soft labels": ((GALLERY, CLASSES, GALLERY, CLASSES / 2), TypeError, "gallery_labels must be integers"),
    "other classes": ((GALLERY, CLASSES + 10, GALLERY, CLASSES), ValueError, "at least one query must have an item"),
}


@pytest.mark.parametrize(("data", "error", "message"), BAD_DATA.values(), ids=BAD_DATA)
def test_retrieval_refuses_what_does_not_fit(data, error, message):
    with pytest.raises(error, match=message):
        retrieval(*data)


@pytest.mark.parametrize("ks", [(0,), (1, 2.5), (-1,)])
def test_bad_ks_are_refused(ks):
    with pytest.raises(ValueError, match="ks must be positive integers"):
        retrieval(GALLERY, CLASSES, GALLERY, CLASSES, ks=ks)


def test_compatibility_refuses_what_does_not_fit():
    old = {"old": (GALLERY, CLASSES)}
    with pytest.raises(ValueError, match="gallery must be named after models: new; got old"):
        compatibility(["new"], old, old)
    with pytest.raises(TypeError, match="models must be given to embed the queries; got names only"):
        compatibility(["old"], old, LOADER)
    with pytest.raises(ValueError, match="same samples for all models; got different labels for new and old"):
        compatibility(["old", "new"], old, old | {"new": (GALLERY, CLASSES.roll(1) * 2)})
    with pytest.raises(ValueError, match=r"queries of new in the gallery of old: .*got 5 and 6"):
        compatibility(["old", "new"], old, {"new": (GALLERY[:, :5], CLASSES)})
    with pytest.raises(ValueError, match="from a gallery's model or a newer one; got none for old, new"):
        compatibility(["old", "new"], {"new": old["old"]}, old)
    with pytest.raises(ValueError, match="at least one batch"):
        compatibility(networks(), iter(LOADER), LOADER)
    with pytest.raises(TypeError, match=r"batches \(inputs, labels\)"):
        compatibility(networks(), [INPUTS], LOADER)


LARGE = """
import torch
from benchmarks.retrieval import megabytes, search
torch.set_num_threads(1)
result = search(100_000, 10_000, 128, 100)
assert 0.3 < result.top1 < 0.4 and 0.05 < result.mean_average_precision < 0.07
assert megabytes() < 2000, megabytes()
"""


@pytest.mark.thorough
def test_a_large_gallery_fits_in_two_gigabytes():
    subprocess.run([sys.executable, "-c", LARGE], check=True, cwd=Path(__file__).parents[2])
