"""Every preset, two steps, on made-up data in the real format."""

import math
from dataclasses import replace

import pytest
import torch

from benchmarks.counting import peak_mb, start_counting_memory
from guided_collapse.experiments.loop import train
from guided_collapse.experiments.presets import PRESETS, preset
from tests.experiments.data import made_up
from tests.experiments.runs import placed, records

pytestmark = pytest.mark.slow

UNCONSTRAINED = [name for name in PRESETS if name.startswith("ufm")]
OMNIGLOT = {f"omniglot{part}": f"images_background{part.replace('-', '_')}.zip" for part in ("", "-small1", "-small2")}


def write_data(name, root):
    """Writes made-up data and returns the number of training images."""
    if name == "cifar10":
        made_up.write_cifar10_binary(root / "cifar10" / "cifar-10-binary.tar.gz", 4)
    elif name == "fashion-mnist":
        made_up.write_idx(root / "fashion-mnist", num_train=20, num_test=10)
    elif name == "cifar100":
        made_up.write_parquet(root / name, num_train=20, num_test=10, num_classes=100, label_column="fine_label")
    elif name == "tiny-imagenet-100":
        made_up.write_folders(root / name, num_per_class=10, size=64)
    elif name in OMNIGLOT:
        made_up.write_zip(root / name / OMNIGLOT[name], made_up.omniglot_members())
    elif name == "stl10":
        made_up.write_parquet(root / name, num_train=8, num_test=4, size=96, image_column="image")
    elif name == "imagenet":
        options = {"size": 260, "num_classes": 1000, "image_column": "image", "test_part": "validation"}
        made_up.write_parquet(root / name, num_train=4, num_test=2, **options)
    known = {"digits": 1437, "stl10": 8, "imagenet": 4, "tiny-imagenet-100": 30, **dict.fromkeys(OMNIGLOT, 48)}
    return known.get(name, 20)


@pytest.mark.thorough
@pytest.mark.usefixtures("_made_up_data_pass_for_real")
@pytest.mark.parametrize("name", [name for name in PRESETS if name not in UNCONSTRAINED])
def test_images(name, tmp_path):
    configuration = preset(name)
    num_train = write_data(configuration.data, tmp_path)
    if configuration.backbone != "small":
        # As narrow as leaves enough features for the classes.
        configuration = replace(configuration, width=0.5 if configuration.data == "imagenet" else 0.25)
    configuration = replace(configuration, epochs=1, batch_size=math.ceil(num_train / 2))
    run = train(configuration, placed(tmp_path / "runs", data_root=tmp_path, num_workers=0))
    (record,) = records(run)
    assert math.isfinite(record["train"]["loss"])
    assert math.isfinite(record["test"]["loss"])


@pytest.mark.thorough
@pytest.mark.parametrize("name", [name for name in UNCONSTRAINED if name != "ufm-1000"])
def test_free_features(name, tmp_path):
    run = train(replace(preset(name), head="nearest-etf", epochs=2), placed(tmp_path))
    assert all(math.isfinite(record["train"]["loss"]) for record in records(run))


@pytest.mark.thorough
def test_ufm_1000_with_the_full_gradient_adds_less_than_two_and_a_half_gigabytes(tmp_path):
    device = torch.device("cpu")
    before = start_counting_memory(device)
    train(replace(preset("ufm-1000"), head="nearest-etf", epochs=1), placed(tmp_path))
    assert peak_mb(device) - before < 2500


@pytest.mark.thorough
def test_on_ufm_10_nearest_etf_fits_before_fixed_etf_and_fixed_etf_before_cosine(tmp_path):
    first, losses = {}, {}
    for head, epochs in (("nearest-etf", 250), ("fixed-etf", 250), ("cosine", 10)):
        configuration = replace(preset("ufm-10"), head=head, epochs=epochs, measure_every=250)
        found = [record for record in records(train(configuration, placed(tmp_path))) if "train" in record]
        first[head] = next(record["epoch"] for record in found if record["train"]["top1"] == 1.0)
        losses[head] = found[-1]["train"]["loss"]
    assert first["nearest-etf"] <= 3
    assert first["nearest-etf"] < first["fixed-etf"] < first["cosine"]
    bound = math.log(1 + 9 * math.exp(-5 * 10 / 9))
    assert losses["nearest-etf"] < 1.2 * bound
    assert losses["fixed-etf"] < 1.2 * bound


def test_unknown_name_gets_the_nearest():
    with pytest.raises(ValueError, match=r"got 'cifar10-resnet-18'. Did you mean cifar10-resnet18"):
        preset("cifar10-resnet-18")
