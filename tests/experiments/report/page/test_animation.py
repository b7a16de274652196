import base64

import numpy as np
import pytest

from guided_collapse.experiments.records.reading import read_records
from guided_collapse.experiments.report.experiment import by_experiment
from guided_collapse.experiments.report.page.animation import MOST_MOMENTS, animations_of, packed
from tests.experiments.report.made_up import trace, write_run


def animations(tmp_path):
    return animations_of(by_experiment(read_records([tmp_path]).runs)[0])


def test_each_head_shows_its_first_seed_that_has_a_trace(tmp_path):
    write_run(tmp_path, head="fixed-etf", seed=0)
    write_run(tmp_path, head="fixed-etf", seed=1, trace=True)
    write_run(tmp_path, head="fixed-etf", seed=2, trace=True)
    write_run(tmp_path, head="cosine", seed=0, trace=True, state="failed")
    write_run(tmp_path, head="cosine", seed=4, trace=True)
    write_run(tmp_path, head="nearest-etf", seed=0)
    assert [(animation.run.head, animation.run.seed) for animation in animations(tmp_path)] == [("cosine", 4), ("fixed-etf", 1)]


def test_the_numbers_equal_an_independent_computation(tmp_path):
    arrays = trace(classes=3)
    write_run(tmp_path, trace=arrays)
    animation = animations(tmp_path)[0]
    for moment in range(4):
        means, weights = arrays["means"][moment].astype(float), arrays["weights"][moment].astype(float)
        around = [np.linalg.norm(x - means[k]) for x, k in zip(arrays["samples"][moment], arrays["sample_labels"], strict=True)]
        apart = [np.linalg.norm(mean - means.mean(axis=0)) for mean in means]
        cosines = [m @ w / np.linalg.norm(m) / np.linalg.norm(w) for m, w in zip(means, weights, strict=True)]
        assert animation.spread[moment] == pytest.approx(np.mean(around) / np.mean(apart), rel=1e-6)
        assert animation.alignment[moment] == pytest.approx(np.mean(cosines), rel=1e-6)


def test_packing_keeps_four_digits(tmp_path):
    arrays = trace()
    write_run(tmp_path, trace=arrays)
    found = packed(animations(tmp_path)[0].trace)
    numbers = np.frombuffer(base64.b64decode(found["points"]), dtype="<i2").reshape(4, 4 + 4 + 40, 3) * found["scale"]
    points = np.concatenate([arrays["weights"], arrays["means"], arrays["samples"]], axis=1)
    np.testing.assert_allclose(numbers, points, atol=1e-4 * np.abs(points).max())


def test_many_moments_are_thinned_and_keep_both_ends(tmp_path):
    write_run(tmp_path, trace=trace(epochs=range(1, 1001)))
    animation = animations(tmp_path)[0]
    assert len(animation.trace.epochs) == len(animation.spread) == MOST_MOMENTS
    assert (animation.trace.epochs[0], animation.trace.epochs[-1]) == (1, 1000)


def test_points_that_coincide_give_no_number_rather_than_a_good_one(tmp_path):
    arrays = trace()
    for name in ("means", "samples", "weights"):
        arrays[name] = np.zeros_like(arrays[name])
    write_run(tmp_path, trace=arrays)
    animation = animations(tmp_path)[0]
    assert np.isnan(animation.spread).all()
    assert np.isnan(animation.alignment).all()
    assert packed(animation.trace)["scale"] == 1.0
