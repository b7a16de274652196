"""Every code block of the documentation runs as it stands, but for those that say that they do not."""

import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.cost import KNOWN_DEVICES, CostRequest, head_counts
from benchmarks.cost_tables import counts_table
from guided_collapse.experiments.cli import main
from guided_collapse.experiments.cli.commands import COMMANDS, parsed
from guided_collapse.experiments.heads import build_head
from guided_collapse.experiments.presets import PRESETS
from guided_collapse.metrics.result import CollapseResult
from tests.experiments.data.made_up import write_cifar10_binary, write_folders

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
DOCS = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "results" / "README.md"]
BLOCK = re.compile(r"(?P<mark><!-- not run: (?P<reason>.*?) -->\n)?```(?P<language>\w+)\n(?P<code>.*?)```", flags=re.DOTALL)
# Commands that are run here; the rest are too long for a test, and their flags are parsed.
QUICK = ["--epochs", "1", "--quiet", "--accelerator", "cpu"]
# What each command calls first when it has understood its words; `list` has nothing but its words.
WORK = {
    "train": "guided_collapse.experiments.loop.train",
    "compare": "guided_collapse.experiments.launch.check_launch",
    "search": "guided_collapse.experiments.grid_search.search",
    "resume": "guided_collapse.experiments.run.RunFolder.facts",
    "report": "guided_collapse.experiments.report.write.write_report",
    "data": "guided_collapse.experiments.data.download.download",
    "export": "guided_collapse.experiments.export.export_run",
    "measure": "guided_collapse.metrics.measure.read_arrays",
}


def blocks(file, language):
    return [found for found in BLOCK.finditer(file.read_text()) if found["language"] == language]


def commands(file):
    found = [block["code"] for block in blocks(file, "bash") if not block["mark"]]
    return [line.partition("  #")[0].strip() for code in found for line in code.splitlines() if line.startswith("guided-collapse")]


def command_lines(file):
    """The words of every command that a page shows, in a block of its own or within a sentence, run here or not."""
    text = file.read_text()
    shown = [line for block in blocks(file, "bash") for line in block["code"].replace("\\\n", " ").splitlines()]
    shown += re.findall(r"`(guided-collapse [^`]+)`", text)
    found = [re.search(r"(?:^|\s)guided-collapse (.*)", line.partition("  #")[0]) for line in shown]
    return [shlex.split(line[1]) for line in found if line]


class WorkBeginsError(Exception):
    """A command has understood its words."""


def check_request(words, monkeypatch):
    """Gives a command its words for real, and stops it where its work would begin."""
    command, *rest = words
    assert command in COMMANDS, words
    if not rest:
        return  # the name of a command, in a sentence about it

    def begin(*_, **__):
        raise WorkBeginsError

    with monkeypatch.context() as patch:
        if command in WORK:
            patch.setattr(WORK[command], begin)
        with pytest.raises(SystemExit if "--help" in rest else WorkBeginsError):
            parsed(words).run()


def run_python(file):
    """Runs the blocks of a page one after the other, as a reader would, and returns their names."""
    names = {"__name__": "tutorial"}
    for block in blocks(file, "python"):
        if not block["mark"]:
            exec(compile(block["code"], file.name, "exec"), names)
    return names


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.documentation
@pytest.mark.filterwarnings("ignore:.*LeafSpec.*is deprecated")
def test_the_head_in_ones_own_loop(capsys):
    names = run_python(ROOT / "docs" / "training-loop.md")
    printed = [float(line.rpartition(" ")[2]) for line in capsys.readouterr().out.splitlines() if line.startswith("test accuracy")]
    assert len(printed) == 5
    assert names["trainer"].train_dataloader.batch_sampler.epoch == 2
    assert min(printed) > 0.9
    assert (Path("digits.pt2").stat().st_size, names["accuracy"]) > (0, 0.9)
    assert torch.equal(names["loaded"].head.weight, names["pretrained"].head.weight)
    before, after = names["model"].eval(), names["restored"].eval()
    assert after.head.class_means.seen.equal(before.head.class_means.seen)


@pytest.mark.documentation
def test_measuring(capsys):
    names = run_python(ROOT / "docs" / "measuring.md")
    assert Path("collapse.png").stat().st_size > 0
    assert names["again"].nc1 == pytest.approx(names["result"].nc1, rel=1e-5)
    assert names["for_a_logger"]["train/nc1"] == names["result"].nc1
    assert names["streamed"].compute().nc1 == pytest.approx(names["of_the_model"].nc1, rel=1e-5)
    for command in commands(ROOT / "docs" / "measuring.md"):
        capsys.readouterr()
        assert main(shlex.split(command)[1:]) == 0
    assert json.loads(capsys.readouterr().out)["nc1"] == pytest.approx(names["result"].nc1, rel=1e-5)


@pytest.mark.documentation
def test_sharing():
    names = run_python(ROOT / "docs" / "sharing.md")
    assert names["loaded"].head.weight.equal(names["model"].head.weight)
    assert "scikit-learn's digits" in Path("digits-model/README.md").read_text()


@pytest.mark.documentation
def test_the_first_page():
    assert run_python(ROOT / "docs" / "index.md")["predictions"].shape == (100,)


def test_the_metrics_that_are_explained_exist():
    text = (ROOT / "docs" / "measuring.md").read_text()
    explained = {name for row in re.findall(r"^\| (`.*?) \|", text, flags=re.MULTILINE) for name in re.findall(r"`(\w+)`", row)}
    fields = set(CollapseResult.__dataclass_fields__)
    assert len(explained) > 10
    assert explained <= fields


@pytest.mark.documentation
def test_the_closed_form():
    run_python(ROOT / "docs" / "closed-form.md")


@pytest.mark.documentation
def test_frames(capsys):
    page = ROOT / "docs" / "frames.md"
    names = run_python(page)
    shown = re.findall(
        r"^\| \d+ \| [\w ]+ \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \| [^|]* \| ([\d.]+) \| ([\d.]+) \|$", page.read_text(), re.M
    )
    printed = [line.split() for line in capsys.readouterr().out.splitlines()]
    for row, (_, angle, most, margin, _, loss, bound) in zip(shown, printed, strict=True):
        assert [float(cell) for cell in row] == pytest.approx([*map(float, (angle, most, margin, loss, bound))], rel=2e-3)
    assert Path("frames.svg").read_text().count("<circle") == (ROOT / "docs" / "frames.svg").read_text().count("<circle") == 30
    assert names["result"].nc2 < 1e-6


@pytest.mark.documentation
def test_comparison(capsys, monkeypatch):
    page = ROOT / "docs" / "comparison.md"
    text = page.read_text()
    quick = {name: replace(configuration, epochs=1) for name, configuration in PRESETS.items()}
    monkeypatch.setattr("guided_collapse.experiments.presets.PRESETS", quick)
    names = run_python(page)
    assert len(names["last"]) == 4
    assert Path("report/report.html").exists()
    assert Path("digits.pdf").exists()
    assert "nearest-etf" in capsys.readouterr().out
    write_folders(Path("my_images"), num_per_class=6, size=32)
    write_cifar10_binary(Path("data/cifar10/cifar-10-binary.tar.gz"), 4)
    for command in commands(page):
        words = shlex.split(command)
        if words[1:3] == ["compare", "--data"]:
            words += ["--width", "0.125", "--batch-size", "9", *QUICK]
        elif words[1:3] == ["compare", "digits"]:
            words += QUICK
        elif words[1] == "cost":
            words += ["--heads", "nearest-etf", "--steps", "2", "--warm-up", "1", "--batch-size", "500"]
        elif words[1] != "report":
            continue
        assert main(words[1:]) == 0, command
    costs = json.loads(Path("runs/digits/cost.json").read_text())["rows"]
    assert [row["head"] for row in costs] == ["nearest-etf", "paper-route"]
    assert all(row["peak_mb"] > 1 and row["backward_ms"] > 0 for row in costs)
    assert "runs/EXPERIMENT/HEAD/seed-K/config.json" in text
    for name in ("config.json", "metrics.jsonl", "margins.npz", "last.ckpt", "model.safetensors"):
        assert Path("runs/digits/fixed-etf/seed-0", name).exists()


@pytest.mark.documentation
def test_several_devices():
    page = ROOT / "docs" / "several-devices.md"
    (block,) = blocks(page, "python")
    Path("example.py").write_text(block["code"])
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "example.py"], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.split()[-1]) > 0.9


@pytest.mark.documentation
def test_devices(capsys):
    page = ROOT / "docs" / "devices.md"
    names = run_python(page)
    assert names["features"].grad.isfinite().all()
    for command in commands(page):
        assert main([*shlex.split(command)[1:], "--heads", "fixed-etf", "--steps", "1", "--warm-up", "0"]) == 0, command
        assert "lower bound (ms)" in capsys.readouterr().out


def test_the_counts_that_are_shown_are_counted():
    configuration = PRESETS["ufm-10"].resolved()
    counted = []
    for name in CostRequest("ufm-10").heads:
        sizes = configuration.feature_dim, configuration.num_classes
        head = build_head(replace(configuration, head=name), *sizes, torch.Generator())
        found = head_counts(name, head, configuration.batch_size)
        counted += [row[1:] for row in counts_table([{"experiment": "ufm-10", "counts": found}]).cells.values.tolist()]
    text = (ROOT / "docs" / "devices.md").read_text()
    shown = re.findall(r"^\| ([\w-]+ \| (?:cpu|accelerator) \| .*) \|$", text, flags=re.MULTILINE)
    assert [row.split(" | ") for row in shown] == counted
    assert "At `ufm-10` (512 features, 10 classes, 1000 samples in a step)" in text


def test_the_devices_that_are_named_are_known():
    text = (ROOT / "docs" / "devices.md").read_text()
    assert f"Known devices are {', '.join(list(KNOWN_DEVICES)[:-1])} and {list(KNOWN_DEVICES)[-1]}," in text


PAGES = pytest.mark.parametrize("file", [ROOT / "README.md", *DOCS], ids=lambda file: str(file.relative_to(ROOT)))


@PAGES
def test_every_command_that_is_shown_is_understood(file, monkeypatch):
    for words in command_lines(file):
        check_request(words, monkeypatch)


def test_the_commands_that_are_shown_are_all_found():
    assert {words[0] for file in (ROOT / "README.md", *DOCS) for words in command_lines(file)} == set(COMMANDS)
    several = command_lines(ROOT / "docs" / "several-devices.md")
    assert ["train", "imagenet-resnet50", "--devices", "8", "--nodes", "2"] in several


@pytest.mark.parametrize(
    "line",
    [
        "list --all",
        "train digits --hed fixed",
        "compare digits --seed 1",
        "resume runs/digits/fixed-etf/seed-0 --epoch 30 --sed 1",
        "report runs --output report",
        "data cifar10 --root data",
        "export runs/digits/fixed-etf/seed-0 --onnx model.onnx",
        "measure features.npz --yaml",
    ],
)
def test_a_shown_command_with_a_flag_that_does_not_exist_is_caught(line, monkeypatch):
    with pytest.raises((SystemExit, ValueError)):
        check_request(line.split(), monkeypatch)


@PAGES
def test_what_is_not_run_says_why(file):
    for language in ("python", "bash"):
        for block in blocks(file, language):
            assert block["mark"] is None or block["reason"]


def test_links_lead_somewhere():
    for file in (ROOT / "README.md", *DOCS):
        for target in re.findall(r"\]\((?!http)([^)#]+)", file.read_text()):
            assert (file.parent / target).exists(), f"{file.name}: {target}"
