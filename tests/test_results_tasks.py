"""What the results are made with beside the package: heads that were tried, and a task with eighty classes."""

import json
import subprocess
import sys

import pytest
import torch
from PIL import Image
from torch.nn import functional

from guided_collapse.experiments.data.split import Split
from results import steps, turned, variants
from results.trials import Trial
from tests.test_docs import ROOT

LABELS = torch.arange(12) % 4


def trained(description, num_steps=4):
    """The head of a variant after some steps, and its frames on the way."""
    trial = {**variants.VARIANTS, **steps.STEPS}[description]
    head = trial.kind(8, 4, scale=5.0, generator=torch.Generator().manual_seed(0), **trial.options)
    frames = []
    for _ in range(num_steps):
        features = torch.rand(12, 8, requires_grad=True)
        functional.cross_entropy(head(features, LABELS), LABELS).backward()
        assert features.grad.isfinite().all()
        frames.append(head.weight.detach().clone())
    return head, frames


@pytest.mark.parametrize("description", [*variants.VARIANTS, *steps.STEPS])
def test_every_trial_trains_and_classifies(description):
    head, _ = trained(description)
    features = torch.rand(5, 8)
    logits = head.eval()(features)
    assert logits.isfinite().all()
    torch.testing.assert_close(head(features[:1]), logits[:1])


def test_variants_differ_in_what_they_say(monkeypatch):
    monkeypatch.setitem(variants.VARIANTS, "two moves", Trial(variants.Settling, {"moves": 2, "lagged": True}))
    _, frames = trained("two moves")
    assert not torch.equal(frames[0], frames[1])
    assert torch.equal(frames[1], frames[3])
    forgetful, _ = trained("a batch has a share of at least 0.1")
    assert float(forgetful.class_means._share(torch.tensor(100), torch.float64)) == pytest.approx(0.1)
    monkeypatch.setitem(variants.VARIANTS, "one move", Trial(variants.LearnedFromFrame, {"moves": 1}))
    learned, frames = trained("one move")
    torch.testing.assert_close(frames[0], learned.nearest[0].frame)


def test_the_first_step_puts_features_alone_on_a_sphere():
    features = torch.rand(5, 8)
    head, _ = trained("features on a sphere")
    points = 5 * features / features.norm(dim=1, keepdim=True)
    torch.testing.assert_close(head.eval()(features), points @ head.learned_weight.T + head.learned_bias)
    assert float(head.weight.detach().norm(dim=1).std()) > 0.01
    assert not torch.equal(head.learned_bias.grad, torch.zeros(4))


def test_features_that_are_centered_first_are_centered_on_the_sphere_too():
    head, _ = trained("centered before the sphere", num_steps=1)
    features = torch.rand(1000, 8) + 5
    assert head.on_sphere(features).mean(dim=0).norm() < 0.5
    assert variants.NearestETFHead.on_sphere(head, features - features.mean(dim=0)).norm(dim=1).allclose(torch.tensor(5.0))


@pytest.mark.thorough
def test_variants_are_trained_and_recorded(tmp_path):
    search = json.loads((ROOT / "results/records/omniglot-small-search/search.json").read_text())
    search["choice"] = {"nearest-etf-lagged": {"scale": 7}}
    (tmp_path / "search.json").write_text(json.dumps(search))
    record = tmp_path / "variants.json"
    record.write_text('{"earlier": {}}')
    command = [sys.executable, "-m", "results.variants", "digits", "--epochs", "1", "--seeds", "3", "--settings-of", str(tmp_path)]
    subprocess.run([*command, "--out", str(tmp_path), "--record", str(record)], check=True, cwd=ROOT, capture_output=True)
    found = json.loads(record.read_text())
    assert set(found) == {"earlier", "digits"}
    assert found["digits"]["settings"] == search["choice"]
    assert list(found["digits"]["runs"]) == list(variants.VARIANTS)
    for place, runs in enumerate(found["digits"]["runs"].values()):
        folder = tmp_path / "digits-variants" / f"trial-{place}" / "seed-3"
        accuracy = json.loads((folder / "metrics.jsonl").read_text())["test"]["top1"]
        assert runs == [{"seed": 3, "test_top1": {"1": accuracy}}]
        assert json.loads((folder / "config.json").read_text())["configuration"]["scale"] == 7


@pytest.mark.thorough
def test_each_variant_takes_what_a_search_chooses_for_it(tmp_path):
    record = tmp_path / "variants.json"
    two = "from results import trials, variants; trials.main(dict(list(variants.VARIANTS.items())[:2]), 'variants')"
    command = [sys.executable, "-c", two, "digits", "--epochs", "1", "--seeds", "3"]
    command += ["--grid", "gain=0.1,10", "scale=7", "--out", str(tmp_path), "--record", str(record)]
    subprocess.run(command, check=True, cwd=ROOT, capture_output=True)
    found = json.loads(record.read_text())["digits"]
    assert found["grid"] == ["gain=0.1,10", "scale=7"]
    assert len(found["runs"]) == 2
    for place, (description, runs) in enumerate(found["runs"].items()):
        ends = {}
        for folder in tmp_path.glob(f"digits-variants-search/trials/*/trial-{place}/seed-*"):
            settings = json.loads((folder / "config.json").read_text())["configuration"]
            ends[json.loads((folder / "metrics.jsonl").read_text())["test"]["top1"]] = settings["gain"]
        assert found["settings"][description] == {"gain": ends[max(ends)], "scale": 7}
        fresh = tmp_path / "digits-variants-search" / "chosen" / "digits-variants" / f"trial-{place}" / "seed-3"
        assert runs == [{"seed": 3, "test_top1": {"1": json.loads((fresh / "metrics.jsonl").read_text())["test"]["top1"]}}]
        assert json.loads((fresh / "config.json").read_text())["configuration"]["gain"] == ends[max(ends)]


def test_turned_images_are_in_one_class_each(tmp_path):
    images = torch.randint(0, 256, (32, 3, 4, 4), dtype=torch.uint8)
    turned.write(Split(images, torch.arange(32) % 2), ("cat", "dog"), 2, tmp_path)
    files = sorted(tmp_path.rglob("*.png"))
    assert len(files) == 32
    assert len({file.parent for file in files}) == 16
    back = torch.frombuffer(bytearray(Image.open(tmp_path / "dog-90-negative" / "00005.png").tobytes()), dtype=torch.uint8)
    image = 255 - back.reshape(4, 4, 3).permute(2, 0, 1)
    assert torch.equal(image.rot90(-1, dims=(1, 2)), images[1::2][5])
