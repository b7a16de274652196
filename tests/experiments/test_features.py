"""The command `features`: the inputs of a run's head, written to a file for other heads."""

from dataclasses import replace

import pytest
import torch

from guided_collapse.experiments.cli import main
from guided_collapse.experiments.data.batches import ProcessShare
from guided_collapse.experiments.data.features import load_features
from guided_collapse.experiments.errors import RequestError
from guided_collapse.experiments.export import export_run, inference_model, trained_model
from guided_collapse.experiments.features import features_of_run
from guided_collapse.experiments.loop import train
from guided_collapse.experiments.presets import FEATURES
from guided_collapse.experiments.run import RunFolder
from guided_collapse.experiments.tasks import build_task
from tests.experiments.data.made_up import write_folders
from tests.experiments.runs import DIGITS, assert_same, contents, interrupted_before, placed


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return train(replace(DIGITS, epochs=1, images_per_class=20), placed(tmp_path_factory.mktemp("runs")))


@pytest.fixture(scope="module")
def file(run, tmp_path_factory):
    file = tmp_path_factory.mktemp("features") / "digits.npz"
    features_of_run(run, None, file, placed(run.path))
    return file


def on_features(file, **changes):
    return replace(FEATURES, **{"data": f"{file}", "epochs": 3, "neck": "mlp", "feature_dim": 16} | changes)


def test_they_are_what_the_head_sees_of_every_sample(run, file):
    data, model = load_features(file), trained_model(run)
    batches = list(build_task(DIGITS).clean_batches(ProcessShare(), test=True))
    with torch.no_grad():
        expected = torch.cat([model.features(inputs) for inputs, _ in batches])
    torch.testing.assert_close(data.test.images, expected, rtol=0, atol=1e-5)
    assert data.test.labels.tolist() == [label for _, labels in batches for label in labels.tolist()]
    assert len(data.train) == 1437  # not only those that the run was trained on
    assert data.class_names == tuple("0123456789")


def test_other_images_and_the_names_of_their_classes(run, tmp_path):
    write_folders(tmp_path / "pets", num_per_class=6, parts=("",))
    with pytest.raises(RequestError, match="must have 1 channels; pets has 3"):
        features_of_run(run, f"{tmp_path / 'pets'}", tmp_path / "pets.npz", placed(tmp_path))
    assert not (tmp_path / "pets.npz").exists()


def test_files_of_runs_and_other_suffixes_are_refused(run, tmp_path):
    before = contents(run.path)
    with pytest.raises(RequestError, match="must not replace a file of a run"):
        features_of_run(run, None, run.path / "margins.npz", placed(tmp_path))
    with pytest.raises(RequestError, match=r"must be one of .npz, .safetensors; got '.csv'"):
        features_of_run(run, None, tmp_path / "digits.csv", placed(tmp_path))
    assert contents(run.path) == before


@pytest.mark.parametrize("head", ["linear", "cosine", "nearest-etf-lagged"])
def test_a_run_on_features_is_resumed_exported_and_turned_into_features(head, file, tmp_path):
    configuration = on_features(file, head=head)
    whole = train(configuration, placed(tmp_path / "whole"))
    interrupted_before(3, configuration, placed(tmp_path / "cut", checkpoint_seconds=0))
    assert_same(whole, train(configuration, placed(tmp_path / "cut")))
    data, model = load_features(file), trained_model(whole)
    inputs = next(iter(build_task(configuration).clean_batches(ProcessShare(), test=True))).inputs
    raw = data.test.images[: len(inputs)]
    export_run(whole, tmp_path / "head.pt2")
    with torch.no_grad():
        torch.testing.assert_close(inference_model(whole)(raw), model(inputs), rtol=0, atol=1e-5)
        torch.testing.assert_close(torch.export.load(tmp_path / "head.pt2").module()(raw), model(inputs), rtol=0, atol=1e-5)
    features_of_run(whole, None, tmp_path / "deeper.safetensors", placed(tmp_path))
    assert load_features(tmp_path / "deeper.safetensors").train.images.shape == (1437, 16)


def test_a_run_on_features_may_take_other_features_of_the_same_width(run, file, tmp_path):
    trained = train(on_features(file, head="linear", epochs=1, test_features=f"{file}"), placed(tmp_path))
    features_of_run(trained, f"{file}", tmp_path / "again.npz", placed(tmp_path))
    assert len(load_features(tmp_path / "again.npz").test) == 360  # of the new file, not of --test-features
    deeper = tmp_path / "deeper.npz"
    features_of_run(trained, None, deeper, placed(tmp_path))
    with pytest.raises(RequestError, match="features must have width 64; deeper has 16"):
        features_of_run(trained, f"{deeper}", tmp_path / "x.npz", placed(tmp_path))


def test_features_are_measured_in_large_batches(file):
    task = build_task(on_features(file, batch_size=2))
    assert [len(labels) for _, labels in task.clean_batches(ProcessShare(), test=False)] == [1000, 437]


@pytest.mark.parametrize("changes", [{"labels": "float32"}, {"features": "nan"}])
def test_the_command_refuses_features_in_words_and_writes_nothing(changes, tmp_path, capsys):
    import numpy as np

    features, labels = np.random.default_rng(0).normal(size=(12, 3)), np.arange(12) % 3
    if "features" in changes:
        features[2, 1] = np.nan
    np.savez(tmp_path / "a.npz", features=features, labels=labels.astype(changes.get("labels", "int64")))
    words = ["--features", f"{tmp_path / 'a.npz'}", "--out", f"{tmp_path / 'runs'}", "--quiet", "--accelerator", "cpu"]
    for command in ("train", "compare"):
        assert main([command, *words]) == 2
        assert "must be" in capsys.readouterr().err
    assert not list((tmp_path / "runs").glob("**/config.json"))


def test_resumed_from_another_folder_the_error_says_where_the_file_was_looked_for(file, tmp_path, monkeypatch, capsys):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "digits.npz").write_bytes(file.read_bytes())
    monkeypatch.chdir(tmp_path)
    configuration = on_features("digits.npz", head="linear")
    run = interrupted_before(2, configuration, placed(tmp_path / "runs"))
    monkeypatch.chdir(tmp_path / "elsewhere")
    words = ["resume", f"{run.path}", "--quiet", "--accelerator", "cpu"]
    assert main(words) == 2
    assert f"there is no file digits.npz in {tmp_path / 'elsewhere'}" in capsys.readouterr().err
    monkeypatch.chdir(tmp_path)
    assert main(words) == 0
    assert RunFolder(run.path).exportable()[0].num_classes == 10
