"""`guided-collapse measure FILE`: the table, JSON, and refusals without a traceback."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from guided_collapse.experiments.cli import main
from guided_collapse.metrics.measure import measure_collapse
from tests.metrics.cases import case

pytestmark = pytest.mark.slow


@pytest.fixture
def data():
    return case("missing")


def saved(data, folder, kind="npz", **more):
    path = folder / f"arrays.{kind}"
    arrays = {name: value.contiguous() for name, value in {**data._asdict(), **more}.items() if value is not None}
    if kind == "npz":
        np.savez(path, **{name: value.numpy() for name, value in arrays.items()})
    else:
        save_file(arrays, path)
    return str(path)


@pytest.mark.parametrize("kind", ["npz", "safetensors"])
def test_the_table_is_that_of_the_result(data, kind, tmp_path, capsys):
    assert main(["measure", saved(data, tmp_path, kind)]) == 0
    assert capsys.readouterr().out == f"{measure_collapse(*data)}\n"


def test_json_holds_every_number(data, tmp_path, capsys):
    path = saved(data, tmp_path, test_features=data.features[:9], test_labels=data.labels[:9])
    options = ["--global-mean", "classes", "--center-weight"]
    expected = measure_collapse(
        *data, test_features=data.features[:9], test_labels=data.labels[:9], global_mean="classes", center_weight=True
    ).to_dict()
    assert main(["measure", path, "--json", *options]) == 0
    del expected["cosine_margins"]
    assert json.loads(capsys.readouterr().out) == expected


def test_without_weights_it_says_what_it_left_out(data, tmp_path, capsys):
    path = saved(data._replace(weight=None, bias=None), tmp_path)
    assert main(["measure", path, "--num-classes", "9"]) == 0
    printed = capsys.readouterr().out
    assert "nc2, nc3" in printed
    assert "needs the classifier's weight" in printed
    assert "no samples of class 1, 4, 7, 8" in printed


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (lambda d: {"labels": d.labels[1:]}, "labels must be (num_samples,) = (70,)"),
        (lambda d: {"labels": d.labels + 7}, "labels must be from 0 to num_classes - 1 = 6"),
        (lambda d: {"features": d.features.where(d.features > 0, torch.nan)}, "NaN or infinite entries of 700"),
        (lambda d: {"labels": torch.zeros_like(d.labels)}, "samples of 1 of 7"),
        (lambda d: {"labels": None}, "it lacks labels and holds features, weight, bias"),
    ],
)
def test_wrong_arrays_are_refused_in_one_line(changes, message, data, tmp_path, capsys):
    refused([saved(data._replace(**changes(data)), tmp_path)], message, capsys)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("arrays.npz", None, "No such file"),
        ("arrays.csv", b"1,2", "must be in an .npz or .safetensors file"),
        ("arrays.npz", b"not a zip", "must be a readable .npz file"),
        ("arrays.safetensors", b"\x00" * 20, "must be a readable .safetensors file"),
    ],
)
def test_unreadable_files_are_refused_in_one_line(name, content, message, tmp_path, capsys):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    refused([str(path)], message, capsys)


def refused(arguments, message, capsys):
    assert main(["measure", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert message in printed.err
    assert printed.err.count("\n") == 1
