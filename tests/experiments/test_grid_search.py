"""Searches: every head gets the same grid, the choice follows the rule, and the test images are used once."""

import json
from dataclasses import asdict, replace

import pytest
import torch

from guided_collapse.experiments import comparison, grid_search, loop
from guided_collapse.experiments.cli.commands import parsed
from guided_collapse.experiments.configuration import Configuration
from guided_collapse.experiments.errors import DamageError, RequestError, WorkError
from guided_collapse.experiments.grid_search import planned_search, search, settings_of_search
from guided_collapse.experiments.presets import OWN_IMAGES
from guided_collapse.experiments.records import Trial, read_records
from guided_collapse.experiments.report.formats import csv_text
from guided_collapse.experiments.report.tables import search_table
from tests.experiments.data.made_up import write_folders
from tests.experiments.runs import assert_same, full_disk, placed

GRID = {"learning_rate": [0.01, 0.2], "scale": [4.0, 8]}
HEADS = ["linear", "fixed-etf"]


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    folder = write_folders(tmp_path_factory.mktemp("images"), num_per_class=8, size=8)
    tiny = replace(OWN_IMAGES, data=str(folder), backbone="small", stem=None, feature_dim=8, width=0.25)
    tiny = replace(tiny, experiment="tiny", epochs=2, batch_size=9, random_resized=False)
    return planned_search(tiny, HEADS, GRID, seeds=[0], trial_seeds=[7], trial_epochs=1, validation_fraction=0.25)


@pytest.fixture(scope="module")
def done(plan, tmp_path_factory):
    torch.set_num_threads(1)  # as every test has
    return search(plan, placed(tmp_path_factory.mktemp("search")))


def said(folder):
    """The record, without times."""
    content = json.loads((folder / "search.json").read_text())
    return {name: value for name, value in content.items() if name not in ("planned", "decided")}


def last_line(folder):
    return json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])


def test_every_setting_that_differs_for_a_head_is_tried_once(done):
    tried = [(trial.head, dict(trial.settings)) for trial in done.record.trials]
    rates = [("linear", {"learning_rate": rate}) for rate in (0.01, 0.2)]
    grid = [("fixed-etf", {"learning_rate": rate, "scale": scale}) for rate in (0.01, 0.2) for scale in (4.0, 8)]
    assert tried == [*rates, *grid]


def test_the_choice_is_the_best_of_what_the_trials_wrote(done):
    for head in HEADS:
        ends = {}
        for folder in (done.folder / "trials").glob(f"*/{head}/seed-7"):
            measured = last_line(folder)["test"]
            ends[folder.parents[1].name] = measured["top1"], -measured["loss"]
        chosen = ",".join(f"{name}={value:g}" for name, value in done.record.choice[head].items())
        assert len(ends) == (2 if head == "linear" else 4)
        assert ends[chosen] == max(ends.values())


def test_trials_are_of_other_images_seeds_and_lengths_than_the_runs_that_count(done):
    trial = json.loads(next((done.folder / "trials").glob("*/fixed-etf/seed-7/config.json")).read_text())
    fresh = json.loads((done.folder / "chosen/tiny/fixed-etf/seed-0/config.json").read_text())
    assert (trial["num_train"], trial["num_test"], trial["configuration"]["epochs"]) == (18, 6, 1)
    assert (fresh["num_train"], fresh["num_test"], fresh["configuration"]["epochs"]) == (24, 24, 2)
    assert fresh["configuration"]["validation_fraction"] is None
    assert {name: fresh["configuration"][name] for name in GRID} == done.record.choice["fixed-etf"]
    assert [run.path.parent.name for run in done.fresh.finished] == HEADS


def test_plan_and_choice_are_written_before_what_they_are_for(plan, tmp_path, monkeypatch):
    written = []

    def watched(configurations, placement, *, jobs):
        written.append(json.loads((tmp_path / "tiny-search" / "search.json").read_text()))
        return comparison.run_all(configurations, placement, jobs=jobs)

    monkeypatch.setattr(grid_search, "run_all", watched)
    search(plan, placed(tmp_path))
    before_trials, before_fresh_seeds = written
    assert before_trials["grid"] == GRID
    assert "highest accuracy on the validation images" in before_trials["rule"]
    assert before_trials["choice"] == {}
    assert set(before_fresh_seeds["choice"]) == set(HEADS)
    assert len(before_fresh_seeds["trials"]) == 6


@pytest.mark.parametrize("number", [2, 7])
def test_an_interrupted_search_ends_as_one_that_was_not(plan, done, number, tmp_path, monkeypatch):
    begun = []

    def interrupted(configuration, placement, **shown):
        begun.append(configuration)
        if len(begun) == number + 1:
            raise KeyboardInterrupt
        return train(configuration, placement, **shown)

    train = loop.train
    with monkeypatch.context() as patch:
        patch.setattr(loop, "train", interrupted)
        with pytest.raises(KeyboardInterrupt):
            search(plan, placed(tmp_path))
    again = search(replace(plan, planned="later"), placed(tmp_path))
    assert said(again.folder) == said(done.folder)
    for mine, other in zip(again.fresh.finished, done.fresh.finished, strict=True):
        assert_same(mine, other)


def test_settings_with_as_many_right_answers_are_equal_whatever_their_sum_rounds_to(plan):
    ends = {0.01: (0.1, 0.2), 0.2: (0.15, 0.15)}
    assert sum(ends[0.01]) > sum(ends[0.2])
    trials = [
        Trial("fixed-etf", {"learning_rate": rate}, seed, {"top1": top1, "loss": 1 - rate})
        for rate, of_seeds in ends.items()
        for seed, top1 in enumerate(of_seeds)
    ]
    record = replace(plan, heads=("fixed-etf",), grid={"learning_rate": [0.01, 0.2]}, trials=tuple(trials))
    assert grid_search._choice(record) == {"fixed-etf": {"learning_rate": 0.2}}


@pytest.mark.filterwarnings("ignore:.*failed")
def test_a_setting_that_diverges_is_not_chosen(plan, tmp_path):
    wild = replace(plan, heads=("fixed-etf",), grid={"learning_rate": [1e9, 0.01]}, seeds=(0,))
    outcome = search(wild, placed(tmp_path))
    assert [trial.measured is None for trial in outcome.record.trials] == [True, False]
    assert outcome.record.choice == {"fixed-etf": {"learning_rate": 0.01}}
    assert ",,1,0\n" in csv_text(search_table([outcome.record]))
    with pytest.raises(WorkError, match="at least one setting of fixed-etf must not diverge"):
        search(replace(wild, grid={"learning_rate": [1e9]}), placed(tmp_path / "none"))


@pytest.mark.filterwarnings("ignore:.*failed")
def test_a_trial_that_fails_for_another_reason_decides_nothing(plan, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(loop, "save_checkpoint", full_disk)
        with pytest.raises(WorkError, match=r"the trial in .* failed, so no settings were chosen: .*No space left"):
            search(plan, placed(tmp_path))
    assert said(tmp_path / "tiny-search")["choice"] == {}


def test_a_search_is_not_changed_once_it_is_begun(plan, done):
    with pytest.raises(RequestError, match="a search with a different grid, seeds"):
        search(replace(plan, grid={"learning_rate": [0.1]}, seeds=(3,)), placed(done.folder.parent))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"grid": {"learning_rate": []}}, "a search needs heads, seeds"),
        ({"grid": {"learnin_rate": [1]}}, "Did you mean learning_rate"),
        ({"grid": {"gain": [1.0]}}, "with --optimizer sgd must be one of learning_rate, .*; got 'gain'"),
        ({"grid": {"learning_rate": [-1.0]}}, "learning_rate must be greater than 0"),
        ({"trial_seeds": [1]}, r"seeds must differ from the trial seeds; got \[1\]"),
        ({"validation_fraction": 1.0}, "validation_fraction must be less than 1"),
    ],
)
def test_wrong_plans_are_refused(changes, reason, plan):
    with pytest.raises(RequestError, match=reason):
        planned_search(Configuration(**plan.configuration), HEADS, **{"grid": GRID, "seeds": [0, 1], **changes})


def test_a_report_shows_the_trials_as_a_table_and_not_as_runs(done):
    records = read_records([done.folder])
    assert sorted({(run.experiment, run.seed) for run in records.runs}) == [("tiny", 0)]
    table = search_table(records.searches)
    chosen = [(row["head"], row["setting"]) for row in table.numbers if row["chosen"]]
    assert [head for head, _ in chosen] == HEADS
    assert "1 epoch on 75 % of the training images, seed 7" in table.notes[0]


def test_a_comparison_takes_what_a_search_has_chosen(plan, done, tmp_path):
    found = settings_of_search(done.folder, HEADS)
    assert found == done.record.choice
    shared = Configuration(**plan.configuration)
    compared = comparison.compare(replace(shared, images_per_class=4), HEADS, [5], placed(tmp_path), settings=found)
    for run in compared.finished:
        facts = json.loads((run.path / "config.json").read_text())
        assert (facts["num_train"], facts["seed"]) == (12, 5)
        assert {name: facts["configuration"][name] for name in found[facts["head"]]} == found[facts["head"]]


def test_settings_that_no_search_has_chosen_are_refused(plan, done, tmp_path):
    with pytest.raises(RequestError, match=r"folder of a search; got .*, which has no search\.json"):
        settings_of_search(tmp_path, HEADS)
    with pytest.raises(RequestError, match=r"chose settings for linear, fixed-etf; got heads nearest-etf\."):
        settings_of_search(done.folder, ["fixed-etf", "nearest-etf"])
    (tmp_path / "search.json").write_text(json.dumps(asdict(plan)))
    with pytest.raises(RequestError, match="chose settings for no head yet"):
        settings_of_search(tmp_path, HEADS)
    (tmp_path / "search.json").write_text("{")
    with pytest.raises(DamageError, match=r"search\.json"):
        settings_of_search(tmp_path, HEADS)
    flags = ["--heads", *HEADS, "--settings-of", str(done.folder)]
    with pytest.raises(RequestError, match="learning_rate must come from the search or from a flag; got both"):
        parsed(["compare", "digits", *flags, "--learning-rate", "1", "--optimizer", "sgd"])
