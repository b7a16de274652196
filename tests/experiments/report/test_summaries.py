"""Medians, ranges and tables of runs against plain Python on the lines that were written."""

import math

import numpy as np
import pytest

from guided_collapse.experiments.heads import HEADS
from guided_collapse.experiments.records import MARGIN, NC1, TRAIN_LOSS, read_run
from guided_collapse.experiments.report import load_runs
from guided_collapse.experiments.report.styles import in_order, label, styles_of
from guided_collapse.experiments.report.summaries import MAX_MARGINS, outcome, when_reached
from tests.experiments.report.made_up import experiments, lines, write_run


def test_few_margins_are_shown_one_by_one_and_many_by_quantile(tmp_path):
    few = np.sort(np.random.default_rng(0).normal(size=(3, 40)), axis=1)
    many = [np.random.default_rng(size).normal(size=size) for size in (2000, 3001)]
    for experiment, margins in (("few", [*few, None]), ("many", many)):
        for seed, own in enumerate(margins):
            write_run(tmp_path, experiment, seed=seed, margins=None if own is None else {"train": own})
    of_few, of_many = experiments(tmp_path)
    curve = of_few.margins("train")["cosine"]
    np.testing.assert_allclose(curve.index, 100 * np.arange(40) / 39)
    np.testing.assert_allclose(curve["median"], np.median(few, axis=0), rtol=1e-12)
    np.testing.assert_allclose(curve[["low", "high"]], np.stack([few.min(axis=0), few.max(axis=0)], axis=1), rtol=1e-12)
    curve = of_many.margins("train")["cosine"]
    assert len(curve) == MAX_MARGINS
    np.testing.assert_allclose(curve["median"], np.mean([np.quantile(own, curve.index / 100) for own in many], axis=0), atol=1e-9)
    assert of_few.margins("test") == {}


def test_one_sample_short_of_everything_is_not_everything(tmp_path):
    accuracies = (1 - 1 / 1_281_167, float(np.float32(0.95)))
    written = [[{"epoch": 1, "train": {"top1": top1}}] for top1 in accuracies]
    almost, rounded = (read_run(write_run(tmp_path, seed=seed, lines=found)) for seed, found in enumerate(written))
    assert (when_reached([almost], 100).reached, when_reached([rounded], 95).reached) == (0, 1)


def test_runs_are_grouped_and_ordered(tmp_path):
    for name, classes in (("ufm-100", 100), ("ufm-20", 20), ("zoo", 10), ("free", 5)):
        configuration = {"backbone": "unconstrained"} if name == "free" else {}
        write_run(tmp_path, name, "cosine", 1, num_classes=classes, num_test=0, configuration=configuration)
    write_run(tmp_path, "zoo", "nearest-etf", 0)
    write_run(tmp_path, "zoo", "cosine", 0, state="failed")
    zoo, *free = experiments(tmp_path)
    assert [experiment.name for experiment in (zoo, *free)] == ["zoo", "free", "ufm-20", "ufm-100"]
    assert zoo.heads == ["cosine", "nearest-etf"]
    assert ([run.seed for run in zoo.of("cosine")], [run.seed for run in zoo.all_of("cosine")]) == ([1], [0, 1])
    assert (zoo.has_test, zoo.unconstrained) == (True, False)
    assert {(experiment.has_test, experiment.unconstrained) for experiment in free} == {(False, True)}


def test_references_are_what_theory_gives(tmp_path):
    for head, bound in (("cosine", 0.5), ("fixed-etf", 0.25), ("linear", None)):
        write_run(tmp_path, "toy", head, loss_lower_bound=bound, num_classes=10)
    for feature_dim in (8, 4):
        write_run(tmp_path, f"in-{feature_dim}", loss_lower_bound=0.5, num_classes=10, feature_dim=feature_dim)
    four, eight, toy = experiments(tmp_path)
    assert (toy.references(TRAIN_LOSS), toy.references(NC1)) == ([0.25, 0.5], [])
    assert [each.references(MARGIN) for each in (toy, eight, four)] == [[pytest.approx(10 / 9)], [1.0], []]


def test_free_features_are_told_by_when_the_loss_is_near_the_least(tmp_path):
    known = {"num_test": 0, "loss_lower_bound": 1.0, "margins": None}
    losses = {("fixed-etf", 0): (2.0, 1.0100001, 1.01), ("fixed-etf", 1): (1.005, 1.2, 1.0), ("cosine", 0): (2.0, 1.5, 1.4)}
    for (head, seed), values in losses.items():
        found = [{"epoch": epoch, "train": {"loss": loss, "top1": 1.0}} for epoch, loss in enumerate(values, 1)]
        write_run(tmp_path, "ufm-9", head, seed, lines=found, **known)
    found = outcome(*experiments(tmp_path))
    assert found.title == "epochs to 1.01 times the least loss"
    assert {head: over[:3] for head, over in found.spreads.items()} == {"fixed-etf": (2, 1, 3), "cosine": (math.inf,) * 3}


@pytest.mark.parametrize(
    ("experiment", "known"),
    [("toy", {"loss_lower_bound": None}), ("ufm-9", {"loss_lower_bound": None}), ("ufm-9", {"num_classes": 9, "feature_dim": 7})],
)
def test_without_test_samples_and_a_bound_that_is_reached_it_is_the_train_loss_above_its_floor(tmp_path, experiment, known):
    write_run(tmp_path, experiment, epochs=1, num_test=0, **known)
    found = outcome(*experiments(tmp_path))
    assert found.title == "train loss above its floor after 1 epoch"
    floor = known.get("loss_lower_bound", 0.0342) or 0.0
    assert found.values["cosine"] == {0: pytest.approx(lines(epochs=1)[0]["train"]["loss"] - floor)}


def test_a_table_of_runs_has_a_row_for_each_run_and_epoch(tmp_path):
    write_run(tmp_path, "toy", "fixed-etf", 0, every=5)
    write_run(tmp_path, "toy", "nearest-etf", 3, epochs=2, state="failed", num_test=0)
    write_run(tmp_path, "toy", "cosine", 1, epochs=0, state="unfinished")
    write_run(tmp_path, "odd", "fixed-etf", 0, lines=[{"epoch": 1, "train": {"made_up": 3.5}}])
    runs = load_runs(tmp_path)
    assert len(runs) == 23
    whole, failed = (runs[(runs["head"] == head) & (runs["experiment"] == "toy")] for head in ("fixed-etf", "nearest-etf"))
    recorded = lines("fixed-etf", 0, 20, every=5)
    assert whole["epoch"].tolist() == list(range(1, 21))
    np.testing.assert_array_equal(whole["train_nc1"], [line.get("train", {}).get("nc1", np.nan) for line in recorded])
    np.testing.assert_array_equal(whole["seconds"], [line["seconds"] for line in recorded])
    assert (set(failed["state"]), set(failed["seed"]), failed["test_top1"].isna().all()) == ({"failed"}, {3}, True)
    assert runs[runs["experiment"] == "odd"]["train_made_up"].tolist() == [3.5]
    assert set(runs.groupby(["configuration_optimizer", "configuration_scale"]).groups) == {("agd", 5.0)}
    assert list(runs)[7:10] == ["epoch", "seconds", "train_loss"]
    assert not {column for column in runs if "running" in column or column.endswith("_seed")}
    with pytest.raises(ValueError, match="nowhere does not exist"):
        load_runs(tmp_path / "nowhere")


def test_known_heads_come_first_and_look_the_same_in_every_report():
    assert in_order(["zebra", "nearest-etf", "ant", "cosine", "nearest-etf"]) == ["cosine", "nearest-etf", "ant", "zebra"]
    assert styles_of(["nearest-etf"])["nearest-etf"] == styles_of([*HEADS, "other"])["nearest-etf"]
    assert len(set(styles_of(["cosine", "nearest-etf", "mine", "yours"]).values())) == 4
    assert len(styles_of([*HEADS, *(f"head {number}" for number in range(30))])) == len(HEADS) + 30
    assert (label("fixed-etf"), label("mine")) == ("Fixed ETF", "mine")
