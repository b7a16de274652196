"""Verdicts on made-up records, their intervals against scipy, and the false-positive rate for equal heads."""

import itertools
import math
import subprocess

import numpy as np
import pytest
from scipy import stats

from guided_collapse.experiments.cli.commands import parsed
from guided_collapse.experiments.records import read_records
from guided_collapse.experiments.report.verdict import lead_over, verdict
from tests.experiments.report.made_up import CONFIGURATION, write_run


def runs_of(folder, correct, *, num_test=1000, experiment="digits", **known):
    """Runs whose test accuracy at the end is that many of the test images, by head and seed."""
    for head, counts in correct.items():
        for seed, count in enumerate(counts):
            train = {"loss": 0.1, "top1": 1.0, "nc1": 0.2 if head == "linear" else 0.1 + 0.001 * seed, "mean_cosine_margin": 0.5}
            line = {"epoch": 1, "seconds": 3.0, "train": train, "test": {"loss": 0.2, "top1": count / num_test}}
            write_run(folder, experiment, head, seed, lines=[line], num_test=num_test, **known)
    return read_records([folder]).runs


WIN = {"linear": [900, 905, 895, 902, 898], "nearest-etf": [960, 964, 957, 962, 959]}
LEVEL = {"linear": [900, 905, 895], "nearest-etf": [903, 904, 899]}


def test_a_win(tmp_path):
    found = verdict(runs_of(tmp_path, WIN | {"cosine": [900, 905, 895, 902, 899], "fixed-etf": [800, 804, 797, 802, 799]}))
    assert (found.call, found.best, found.reference) == ("ahead", "Nearest ETF", "nn.Linear")
    assert "Level with nn.Linear: Cosine" in found.text
    assert "Behind: Fixed ETF" in found.text
    assert "6.04 points" in found.text
    assert "5 seeds, 1,000 test images" in found.text
    assert "most collapsed" in found.text
    assert "A run takes 3 s" in found.text
    flags = "--batch-size 64 --epochs 1 --heads linear cosine fixed-etf nearest-etf"
    assert found.command == f"guided-collapse search digits {flags} --grid scale=2.5,5,10"


def test_a_loss(tmp_path):
    found = verdict(runs_of(tmp_path, {"linear": WIN["nearest-etf"], "nearest-etf": WIN["linear"]}))
    assert (found.call, found.best, found.reference) == ("behind", "Nearest ETF", "nn.Linear")
    assert found.text.startswith("nn.Linear is ahead")
    assert "-6.04 points" in found.text


def test_a_draw_that_more_seeds_would_not_settle_says_so_and_recommends_a_search(tmp_path):
    runs = runs_of(tmp_path, LEVEL, num_test=1000)
    found = verdict(runs)
    assert found.call == "draw"
    assert found.text.startswith("Draw")
    limit = stats.norm.ppf(0.975) * math.sqrt((0.0995 * 0.9005 + 0.0975 * 0.9025) / 1002)
    assert f"below {100 * limit:.2g} points" in found.advice
    assert found.command.startswith("guided-collapse search")
    assert verdict(runs, searched=True).command == ""


def test_a_draw_because_seeds_differ_asks_for_more_of_them(tmp_path):
    found = verdict(runs_of(tmp_path, {"linear": [900, 800, 850], "nearest-etf": [910, 960, 900]}, num_test=1000))
    assert found.call == "draw"
    assert (
        found.command == "guided-collapse compare digits --batch-size 64 --epochs 1 --heads linear nearest-etf --seeds 0 1 2 3 4 5"
    )


@pytest.mark.parametrize("seeds", [1, 2])
def test_one_or_two_seeds_are_too_few_whatever_they_say(seeds, tmp_path):
    found = verdict(runs_of(tmp_path, {head: counts[:seeds] for head, counts in WIN.items()}))
    assert found.call == "too few seeds"
    assert "interval" not in found.text
    assert found.command.endswith("--seeds 0 1 2 3 4")


def test_failed_and_unfinished_runs_do_not_count_and_are_to_be_repeated(tmp_path):
    runs_of(tmp_path, {head: counts[:2] for head, counts in WIN.items()})
    write_run(tmp_path, "digits", "linear", 2, state="failed")
    write_run(tmp_path, "digits", "nearest-etf", 2, state="unfinished")
    found = verdict(read_records([tmp_path]).runs)
    assert found.call == "too few seeds"
    assert "2 seeds" in found.text
    assert "2 of 6 runs" in found.advice


def test_without_finished_runs_of_two_heads_there_is_nothing_to_compare(tmp_path):
    write_run(tmp_path, "digits", "linear", 0, state="failed")
    assert verdict(read_records([tmp_path]).runs).call == "nothing to compare"
    runs_of(tmp_path, {"nearest-etf": [900]})
    found = verdict(read_records([tmp_path]).runs)
    assert (found.call, found.best) == ("nothing to compare", "")
    assert "only Nearest ETF" in found.text
    write_run(tmp_path, "digits", "cosine", 1, epochs=1)  # another seed
    assert verdict(read_records([tmp_path]).runs).call == "nothing to compare"
    assert verdict(()).call == "nothing to compare"


def test_without_linear_the_first_head_is_the_reference(tmp_path):
    found = verdict(runs_of(tmp_path, {"fixed-etf": WIN["linear"], "nearest-etf": WIN["nearest-etf"]}))
    assert (found.call, found.best, found.reference) == ("ahead", "Nearest ETF", "Fixed ETF")


def free_features(folder, losses, bounds):
    for (head, found), seed in itertools.product(losses.items(), range(3)):
        lines = [
            {"epoch": epoch, "train": {"loss": loss, "top1": 1.0}} for epoch, loss in enumerate(found[seed:] + found[:seed], 1)
        ]
        write_run(folder, "ufm-9", head, seed, lines=lines, num_test=0, margins=None, loss_lower_bound=bounds[head])
    return verdict(read_records([folder]).runs)


def test_free_features_are_compared_by_the_epochs_to_the_least_loss(tmp_path):
    losses = {"cosine": [9.0] * 30, "nearest-etf": [9.0, 9.0, *[1.0] * 28]}
    found = free_features(tmp_path, losses, dict.fromkeys(losses, 1.0))
    # The first seeds below the bound are epochs 3, 2 and 1, and Cosine never is in 30.
    assert (found.call, found.best) == ("ahead", "Nearest ETF")
    assert "at least 28 epochs" in found.text
    assert "test" not in found.text
    assert found.command == ""


def test_a_lead_of_one_measured_epoch_is_a_draw(tmp_path):
    losses = {"cosine": [9.0] * 8 + [1.0] * 3, "nearest-etf": [9.0] * 7 + [1.0] * 4}
    lines = {head: [{"epoch": epoch, "train": {"loss": loss, "top1": 1.0}} for epoch, loss in enumerate(found, 1)]
             for head, found in losses.items()}  # fmt: skip
    for head, seed in itertools.product(losses, range(3)):
        write_run(tmp_path, "ufm-9", head, seed, lines=lines[head], num_test=0, margins=None, loss_lower_bound=1.0)
    found = verdict(read_records([tmp_path]).runs)
    assert found.call == "draw"
    assert "0 to +2" in found.text


def test_where_not_all_heads_have_a_floor_the_loss_above_it_is_compared(tmp_path):
    """0.004 above a floor of 1.0 is nearer than 0.5 above none."""
    losses = {"linear": [0.5, 0.5001, 0.5002], "nearest-etf": [1.004, 1.0041, 1.0042]}
    found = free_features(tmp_path, losses, {"linear": None, "nearest-etf": 1.0})
    assert (found.call, found.best) == ("ahead", "Nearest ETF")
    assert "train loss above its floor" in found.text
    assert "0.496 lower" in found.text


def test_the_interval_joins_seeds_and_test_images():
    own, other, num_test = np.array([0.91, 0.93, 0.92, 0.95]), np.array([0.90, 0.91, 0.93, 0.90]), 500
    lead = lead_over(own, other, num_test, risk=0.02)
    seeds = stats.ttest_rel(own, other).confidence_interval(0.98)
    rates = [(values.mean() * num_test + 1) / (num_test + 2) for values in (own, other)]
    images = stats.norm.ppf(0.99) * math.sqrt(sum(rate * (1 - rate) for rate in rates) / (num_test + 2))
    assert lead.mean == pytest.approx(np.mean(own - other))
    assert lead.high - lead.mean == pytest.approx(math.hypot((seeds.high - seeds.low) / 2, images))
    assert (lead.limit, lead.low) == (pytest.approx(images), pytest.approx(2 * lead.mean - lead.high))
    assert lead_over([0.9], [0.1], num_test).call == "draw"


def test_equal_heads_draw_as_often_as_stated_if_they_err_independently_and_more_often_otherwise():
    """Two heads with accuracy 0.6, whose correct images are the same for all seeds or redrawn for each."""
    generator, num_test, trials = np.random.default_rng(0), 1000, 1500
    rates = {}
    for shared, redrawn in ((0.0, 0.0), (0.0, 0.5), (0.8, 0.2)):
        draws = 0
        for _ in range(trials):
            common = generator.random(num_test) < 0.6
            values = []
            for _ in range(2):
                head = np.where(generator.random(num_test) < shared, common, generator.random(num_test) < 0.6)
                seeds = generator.random((3, num_test)) < 0.6
                values.append(np.where(generator.random((3, num_test)) < redrawn, seeds, head).mean(axis=1))
            draws += lead_over(*values, num_test).call == "draw"
        rates[shared, redrawn] = draws / trials
    assert 0.935 < rates[0.0, 0.0] < 0.965
    assert min(rates.values()) == rates[0.0, 0.0]


def test_in_a_terminal_it_is_at_most_100_columns_and_its_commands_parse(tmp_path):
    heads = {"linear": 900, "sphere-linear": 910, "fixed-etf-random": 920, "nearest-etf-detached": 1000, "nearest-etf-lagged": 890}
    for seeds in (1, 3):
        folder = tmp_path / str(seeds)
        text = str(verdict(runs_of(folder, {head: [count] * seeds for head, count in heads.items()}, num_test=1000)))
        assert max(map(len, text.splitlines())) <= 100
        command = text[text.index("guided-collapse") :]
        words = subprocess.run(
            ["sh", "-c", command.replace("guided-collapse", "echo", 1)], capture_output=True, text=True, check=True
        )
        request = parsed(words.stdout.split())
        assert request.heads == tuple(heads)


@pytest.mark.parametrize(
    "words",
    [
        "digits",
        "digits --epochs 3 --optimizer adamw --experiment mine",
        "cifar10-small --no-flip --images-per-class 20 --scale 7",
        "--data my_images --epochs 3 --backbone small --image-size 32 --batch-norm",
        "--data my_images --pretrained --freeze --neck mlp --feature-dim 64 --learning-rate 0.01",
        "--features my.npz --test-features other.npz --neck none",
    ],
)
def test_more_seeds_are_asked_for_with_the_same_settings(tmp_path, words):
    heads = ["--heads", "linear", "cosine"]
    asked = parsed(["compare", *words.split(), *heads]).configuration
    shown = asked.resolved().to_dict()
    runs = runs_of(tmp_path, {"linear": [900], "cosine": [901]}, experiment=asked.experiment, configuration=shown)
    request = parsed(verdict(runs).command.split()[1:])
    assert request.configuration.resolved() == asked.resolved()
    assert request.seeds == (0, 1, 2, 3, 4)


def test_the_next_command_leaves_out_heads_that_only_upgrade_trains(tmp_path):
    runs_of(tmp_path, {"anchored": [900]}, configuration=CONFIGURATION | {"scale": 12.0, "upgrade_of": "0123"})
    found = verdict(runs_of(tmp_path, {"linear": [900], "cosine": [901]}))
    assert " --heads linear cosine --seeds" in found.command
    assert "scale" not in found.advice


def test_settings_that_differ_between_heads_are_named(tmp_path):
    runs_of(tmp_path, {"linear": [900]}, configuration=CONFIGURATION | {"epochs": 7, "gain": 3.0})
    runs = runs_of(tmp_path, {"cosine": [900]}, configuration=CONFIGURATION | {"epochs": 7, "gain": 5.0})
    found = verdict(runs)
    assert "--epochs 7" in found.command
    assert "gain" not in found.command
    assert "gain" in found.advice


@pytest.mark.filterwarnings("default:agd has no learning_rate")
@pytest.mark.parametrize("known", [{}, {"optimizer": "sgd", "learning_rate": 0.1}, {"optimizer": "adamw", "learning_rate": None}])
def test_the_grid_of_the_search_is_around_the_settings(tmp_path, known):
    correct = {head: counts[:3] for head, counts in WIN.items()}
    found = verdict(runs_of(tmp_path, correct, configuration=CONFIGURATION | {"scale": 4.0, "epochs": 1} | known))
    grid = found.command.partition("--grid ")[2]
    assert "scale=2,4,8" in grid
    assert ("learning_rate=0.05,0.1,0.2" in grid) == (known.get("learning_rate") == 0.1)
