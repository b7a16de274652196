import os
import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

from guided_collapse.experiments.cli import main
from guided_collapse.experiments.configuration import Configuration
from guided_collapse.experiments.errors import DamageError, RequestError
from guided_collapse.experiments.export import inference_model, trained_model
from guided_collapse.experiments.loop import train
from guided_collapse.experiments.run import LAST_CHECKPOINT, MODEL, RunFolder, run_status
from guided_collapse.experiments.tasks import build_model, build_task
from guided_collapse.experiments.upgrade import anchors, embedded, samples_for, upgrade
from tests.experiments.runs import DIGITS, FREE, assert_same, contents, interrupted_before, placed, records, weights

OLD = replace(DIGITS, head="linear", optimizer="sgd", epochs=3)


def upgraded(old, start=OLD, **changes):
    """The configuration of an upgrade of a run."""
    facts, _ = old.exportable()
    return replace(
        start, **{"experiment": "new", "head": "anchored", "upgrade_of": facts.finished.files[MODEL], "scale": 12.0, **changes}
    )


@pytest.fixture(scope="module")
def old(tmp_path_factory):
    return train(OLD, placed(tmp_path_factory.mktemp("old")))


@pytest.fixture(scope="module")
def done(old, tmp_path_factory):
    return upgrade(old, upgraded(old), placed(tmp_path_factory.mktemp("new")))


def unit_features(run, images):
    """Features over their norm of images from 0 to 255, with the numbers in `config.json` and the layers of the model alone."""
    inputs = run.facts().inputs
    scaled = (images / 255 - torch.tensor(inputs.mean)[:, None, None]) / torch.tensor(inputs.std)[:, None, None]
    model = trained_model(run)
    with torch.no_grad():
        features = model.backbone(scaled)
        features = features if model.neck is None else model.neck(features)
    return (features / features.square().sum(dim=1, keepdim=True).sqrt()).double().numpy()


def test_rows_are_the_old_class_means_and_new_queries_match_the_old_gallery(old, done):
    split = samples_for(old, OLD, placed(old.path)).data.train
    features, labels = unit_features(old, split.images.float()), split.labels.numpy()
    means = np.stack([features[labels == label].mean(axis=0) for label in range(10)])
    rows = weights(done.run)["head.rows"]
    np.testing.assert_allclose(rows, means / np.linalg.norm(means, axis=1, keepdims=True), rtol=0, atol=1e-5)
    tests = {pair: test.top1 for pair, test in done.tests.tests.items()}
    assert tests["generation 2", "generation 1"] > tests["generation 1", "generation 1"] - 0.1 > 0.5
    assert run_status(done.run.path).state == "finished"


def test_without_an_anchor_new_queries_do_not_match_the_old_gallery(old, tmp_path):
    configuration = upgraded(old, head="linear", upgrade_of=None, scale=5.0, seed=1)
    tests = upgrade(old, configuration, placed(tmp_path)).tests.tests
    assert tests["generation 2", "generation 2"].top1 > 0.5 > tests["generation 2", "generation 1"].top1 + 0.2


@pytest.mark.parametrize("epoch", [1, 2])
def test_interrupted_runs_resume_without_the_old_run(epoch, old, done, tmp_path):
    gone = RunFolder(shutil.copytree(old.path, tmp_path / "old"))
    configuration = upgraded(gone)
    run = interrupted_before(epoch, configuration, placed(tmp_path), anchors=lambda: anchors(gone, configuration, placed(tmp_path)))
    shutil.rmtree(gone.path)
    assert main(["resume", str(run.path), "--accelerator", "cpu", "--quiet"]) == 0
    assert_same(run, done.run)


def test_a_damaged_checkpoint_of_the_first_epoch_is_refused(old, tmp_path):
    configuration = upgraded(old)
    run = interrupted_before(1, configuration, placed(tmp_path), anchors=lambda: anchors(old, configuration, placed(tmp_path)))
    (run.path / LAST_CHECKPOINT).write_bytes(b"damaged")
    with pytest.warns(RuntimeWarning, match="is damaged"), pytest.raises(DamageError, match="repeat the upgrade command"):
        train(configuration, placed(tmp_path))


def test_a_wider_network_gets_a_neck_and_its_export_has_its_logits(old, tmp_path):
    run = upgrade(old, upgraded(old, feature_dim=96, affine=True), placed(tmp_path)).run
    assert weights(run)["neck.weight"].shape == (64, 96)
    task = samples_for(run, OLD, placed(tmp_path))
    features = unit_features(run, task.data.test.images[:9].float())
    logits = inference_model(run)(task.data.test.images[:9] / 255).detach()
    np.testing.assert_allclose(logits, 12 * features @ weights(run)["head.rows"].T, rtol=0, atol=1e-4)


def test_the_seed_alone_draws_the_neck(old):
    configuration = upgraded(old, feature_dim=96, affine=True)
    task, rows = build_task(configuration), torch.eye(10, 64)
    one, two = (build_model(configuration, task, torch.device("cpu"), rows).neck.weight for _ in range(2))
    assert torch.equal(one, two)


def test_the_frame_moves_rows(old, done, tmp_path):
    rows = anchors(old, upgraded(old, frame=1.0), placed(tmp_path)).double()
    products = rows @ rows.T
    torch.testing.assert_close(
        products, products.diagonal().diag() - (1 - torch.eye(10, dtype=torch.float64)) / 9, rtol=0, atol=1e-5
    )
    assert not np.allclose(rows, weights(done.run)["head.rows"], atol=0.1)


def test_three_generations_share_the_first_rows(old, done, tmp_path):
    configuration = upgraded(done.run, experiment="third", seed=7)
    third = upgrade(done.run, configuration, placed(tmp_path), galleries=[old])
    assert weights(third.run)["head.rows"].tobytes() == weights(done.run)["head.rows"].tobytes()
    assert third.tests.models == ("generation 1", "generation 2", "generation 3")
    tests = {pair: test.top1 for pair, test in third.tests.tests.items()}
    assert tests["generation 3", "generation 1"] > 0.7
    assert tests["generation 2", "generation 1"] == done.tests.tests["generation 2", "generation 1"].top1
    with pytest.raises(RequestError, match=r"frame must be 0 if the old run is itself anchored.*got 0.5"):
        upgrade(done.run, replace(configuration, frame=0.5), placed(tmp_path / "refused"))
    assert not (tmp_path / "refused").exists()


def write_digits(folder, names, size=8):
    """Digits in class folders, fifty images for each name, which begins with the digit."""
    digits = load_digits()
    for name in names:
        (folder / name).mkdir(parents=True)
        for number, image in enumerate(digits.images[digits.target == int(name[0])][:50]):
            picture = Image.fromarray((image * 15).astype(np.uint8)).resize((size, size))
            picture.save(folder / name / f"{number}.png")
    return str(folder)


def test_new_classes_sizes_and_numbers(tmp_path):
    runs = tmp_path / "runs"
    first = replace(OLD, data=write_digits(tmp_path / "first", ["3 three", "7 seven"]), batch_size=20)
    second = write_digits(tmp_path / "second", ["1 one", "3 three", "7 seven"], size=12)
    start = train(first, placed(runs))
    twice = upgraded(start, first, experiment="second", data=second)
    done = upgrade(start, twice, placed(runs))
    assert done.run.facts().inputs.shape == (3, 12, 12)
    images = samples_for(start, twice, placed(runs))
    assert images.data.image_shape == (3, 8, 8)
    assert images.statistics.mean == start.facts().inputs.mean != done.run.facts().inputs.mean
    both = write_digits(tmp_path / "both", ["1 one", "7 seven", "9 nine"], size=12)
    third = upgraded(done.run, first, experiment="third", data=both)
    rows = anchors(done.run, third, placed(runs)).numpy()
    known = weights(done.run)["head.rows"]
    assert rows[[0, 1]].tobytes() == known[[0, 2]].tobytes()
    vectors, labels = embedded(done.run, third, placed(runs))[0]
    mean = vectors[labels == 2].double().mean(dim=0).numpy()
    np.testing.assert_allclose(rows[2], mean / np.linalg.norm(mean), rtol=0, atol=1e-5)


def test_refusals_write_nothing(old, tmp_path):
    out = tmp_path / "out"

    def refused(run, match, configuration=None, error=RequestError):
        with pytest.raises(error, match=match):
            upgrade(run, configuration or upgraded(old), placed(out))
        assert not out.exists()

    refused(RunFolder(tmp_path), "must be the folder of a run")
    refused(interrupted_before(2, OLD, placed(tmp_path)), "is not a finished run")
    refused(train(replace(FREE, epochs=1), placed(tmp_path)), "has unconstrained features")
    refused(old, "unconstrained features need data and backbone `unconstrained`", FREE)
    refused(old, "images must have 1 channels; color has 3", upgraded(old, data=write_digits(tmp_path / "color", ["1", "2"])))
    plain = {"head": "linear", "upgrade_of": None, "scale": 5.0}
    refused(old, "must have the same width to be compared; got 64 .*32 of the new network", upgraded(old, feature_dim=32, **plain))
    refused(old, "agd allows no biases, but the neck from 96 features to the 64", upgraded(old, feature_dim=96, optimizer="agd"))
    refused(old, "must be in .*it is not", upgraded(old, data="fashion-mnist"))
    damaged = RunFolder(shutil.copytree(old.path, tmp_path / "damaged"))
    (damaged.path / MODEL).write_bytes(b"altered")
    refused(damaged, "has changed since the run finished", error=DamageError)


def test_the_anchored_head_needs_an_old_run(old, tmp_path, capsys):
    for changes in ({"head": "anchored"}, {"upgrade_of": "some"}):
        with pytest.raises(RequestError, match="head anchored needs upgrade_of"):
            replace(OLD, **changes)
    with pytest.raises(RequestError, match="has no checkpoint with the rows of its head"):
        train(upgraded(old), placed(tmp_path / "out"))
    assert not (tmp_path / "out").exists()
    assert main(["train", "digits", "--head", "anchored", "--out", str(tmp_path / "out")]) == 2
    assert "guided-collapse upgrade OLD_RUN" in capsys.readouterr().err


def command(old, out, *flags):
    return main(["upgrade", str(old), *flags, "--out", str(out), "--accelerator", "cpu", "--quiet"])


def test_the_command(old, tmp_path, capsys):
    assert command(old.path, tmp_path, "--epochs", "2", "--scale", "12") == 0
    place = tmp_path / "digits" / "anchored" / "seed-0"
    facts = RunFolder(place).facts()
    assert Configuration(**facts.configuration) == replace(upgraded(old, epochs=2), experiment="digits").resolved()
    printed = capsys.readouterr().out
    assert f"generation 1: {old.path}\ngeneration 2: {place}\n" in printed
    before = contents(place)
    assert command(old.path, tmp_path, "--epochs", "2", "--scale", "12") == 0  # finished
    assert contents(place) == before
    assert capsys.readouterr().out == printed
    assert command(place, tmp_path, "--epochs", "2", "--scale", "12") == 2  # the same folder
    assert "upgrade_of is" in capsys.readouterr().err
    assert contents(place) == before
    assert command(old.path, tmp_path, "--preset", "digits", "--head", "cosine", "--epochs", "1", "--seed", "3") == 0
    assert RunFolder(tmp_path / "digits" / "cosine" / "seed-3").facts().configuration["optimizer"] == "agd"


def test_the_command_refuses(old, tmp_path, capsys):
    for flags, words in {
        (str(tmp_path / "none"),): "must be the folder of a run",
        (str(old.path), "--preset", "digit"): "Did you mean digits",
        (str(old.path), "--frame", "2"): "frame",
        (str(old.path), "--galleries", str(tmp_path)): "must be the folder of a run",
    }.items():
        assert command(flags[0], tmp_path / "out", *flags[1:]) == 2
        assert words in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.thorough
def test_the_command_in_two_processes(old, tmp_path):
    """The rows are those of one process, the loss is the same up to rounding, and the tests are printed once."""
    flags = ["--epochs", "1", "--batch-size", "480", "--scale", "12", "--no-batch-norm", "--accelerator", "cpu", "--quiet"]
    runs, printed = [], []
    for devices in ("1", "2"):
        out = tmp_path / devices
        command = [sys.executable, "-m", "guided_collapse.experiments.cli", "upgrade", str(old.path)]
        done = subprocess.run(
            [*command, *flags, "--devices", devices, "--out", str(out)],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        runs.append(RunFolder(out / "digits" / "anchored" / "seed-0"))
        printed.append(done.stdout)
    one, two = runs
    np.testing.assert_array_equal(weights(one)["head.rows"], weights(two)["head.rows"])
    (mine,), (theirs,) = records(one), records(two)
    assert theirs["running"] == pytest.approx(mine["running"], rel=1e-4)
    assert [text.count("generation 2: ") for text in printed] == [1, 1]
    assert [text.count("queries of 2 models in each other's galleries") for text in printed] == [1, 1]


def test_a_report_shows_an_upgrade(done, tmp_path):
    assert main(["report", str(done.run.path.parents[2]), "--out", str(tmp_path)]) == 0
    assert "anchored" in (tmp_path / "report.html").read_text()
