"""Every code block of the documentation runs as it is, except those marked otherwise, and every command parses."""

import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from guided_collapse.experiments.cli import main
from guided_collapse.experiments.cli.commands import COMMANDS, parsed
from guided_collapse.experiments.presets import PRESETS
from guided_collapse.experiments.run import RunFolder
from results import frames
from tests.experiments.data.made_up import write_folders

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "results" / "README.md", *sorted(DOCS.glob("*.md"))]
BLOCK = re.compile(r"(?P<mark><!-- not run: .+? -->\n)?```(?P<language>\w+)\n(?P<code>.*?)```", flags=re.DOTALL)
QUICK = ["--epochs", "1", "--quiet", "--accelerator", "cpu"]
# What each command calls first, once it has understood its words; `list` does nothing else.
WORK = {
    "train": "guided_collapse.experiments.loop.train",
    "compare": "guided_collapse.experiments.launch.check_launch",
    "search": "guided_collapse.experiments.launch.check_launch",
    "upgrade": "guided_collapse.experiments.run.RunFolder.exportable",
    "resume": "guided_collapse.experiments.run.RunFolder.facts",
    "report": "guided_collapse.experiments.report.write.write_report",
    "data": "guided_collapse.experiments.data.download.download",
    "export": "guided_collapse.experiments.export.export_run",
    "features": "guided_collapse.experiments.features.check_target",
    "measure": "guided_collapse.metrics.measure.read_arrays",
}


def blocks(file, language):
    return [found for found in BLOCK.finditer(file.read_text()) if found["language"] == language]


def commands(file):
    """The commands of the blocks that are not marked."""
    shown = [block["code"].replace("\\\n", " ") for block in blocks(file, "bash") if not block["mark"]]
    lines = [line for code in shown for line in code.splitlines()]
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("guided-collapse")]


def command_lines(file):
    """The words of every command that a page shows, in a block or in a sentence."""
    shown = [line for block in blocks(file, "bash") for line in block["code"].replace("\\\n", " ").splitlines()]
    shown += re.findall(r"`(guided-collapse [^`]+)`", file.read_text())
    found = [re.search(r"(?:^|\s)guided-collapse (.*)", line) for line in shown]
    return [shlex.split(line[1], comments=True) for line in found if line]


class WorkBeginsError(Exception):
    """Signals that a command has parsed its arguments."""


def check_request(words, monkeypatch):
    """Gives a command its words, and stops it where its work would begin."""
    command, *rest = words
    assert command in COMMANDS, words
    if not rest:
        return  # the name of a command, in a sentence about it

    def begin(*_, **__):
        raise WorkBeginsError

    with monkeypatch.context() as patch:
        # There is no old run.
        patch.setattr(RunFolder, "facts", lambda _: SimpleNamespace(configuration=PRESETS["digits"].to_dict()))
        if command in WORK:
            patch.setattr(WORK[command], begin)
        patch.setattr("guided_collapse.experiments.grid_search.settings_of_search", lambda *_: {})  # there is no search
        with pytest.raises(SystemExit if "--help" in rest else WorkBeginsError):
            parsed(words).run()


def run_python(file):
    """Runs the blocks of a page one after the other, and returns their names."""
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
def test_training_loop(capsys):
    names = run_python(DOCS / "training-loop.md")
    printed = [float(line.rpartition(" ")[2]) for line in capsys.readouterr().out.splitlines() if line.startswith("test accuracy")]
    assert len(printed) == 5
    assert min(printed) > 0.9
    assert names["trainer"].train_dataloader.batch_sampler.epoch == 2
    assert Path("digits.pt2").stat().st_size > 0
    assert torch.equal(names["loaded_vit"].classifier.weight, names["vit"].classifier.weight)
    assert names["restored"].head.class_means.seen.equal(names["model"].head.class_means.seen)


@pytest.mark.documentation
def test_measuring(capsys):
    names = run_python(DOCS / "measuring.md")
    assert Path("collapse.png").stat().st_size > 0
    assert names["again"].nc1 == pytest.approx(names["result"].nc1, rel=1e-5)
    assert names["for_a_logger"]["train/nc1"] == names["result"].nc1
    assert names["streamed"].compute().nc1 == pytest.approx(names["of_the_model"].nc1, rel=1e-5)
    for words in commands(DOCS / "measuring.md"):
        capsys.readouterr()
        assert main(words) == 0
    assert json.loads(capsys.readouterr().out)["nc1"] == pytest.approx(names["result"].nc1, rel=1e-5)


@pytest.mark.documentation
def test_upgrading(capsys):
    names = run_python(DOCS / "upgrading.md")
    tests = {pair: found.top1 for pair, found in names["result"].tests.items()}
    assert tests["new", "old"] > tests["old", "old"]
    for words in commands(DOCS / "upgrading.md"):
        assert main([*words, *QUICK]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert re.search("in the gallery of generation 1 is .* with queries of generation 3", printed)


@pytest.mark.documentation
def test_pretrained(capsys):
    run_python(DOCS / "pretrained.md")
    compare, export, features, measure = commands(DOCS / "pretrained.md")
    assert main([*compare, *QUICK, "--seeds", "0"]) == 0
    for words in (export, features, measure):
        assert main(words) == 0
    assert "NC1" in capsys.readouterr().out
    assert Path("head.pt2").exists()


@pytest.mark.documentation
def test_sharing():
    names = run_python(DOCS / "sharing.md")
    assert names["loaded"].head.weight.equal(names["model"].head.weight)


@pytest.mark.documentation
@pytest.mark.parametrize("page", ["index", "choosing", "coming-from", "closed-form", "devices", "frames"])
def test_other_pages(page):
    run_python(DOCS / f"{page}.md")


@pytest.mark.documentation
def test_the_picture_of_frames_and_the_table_beside_it_are_what_the_runs_give():
    runs = [frames.train(num_classes) for num_classes in frames.NAMES]
    numbers = re.compile(r"-?\d+(?:\.\d+)?")
    for run in runs:
        num_classes, name, *cells = frames.row(*run)
        (shown,) = re.findall(rf"^\| {num_classes} \| {name} \| (.+) \|$", (DOCS / "frames.md").read_text(), re.MULTILINE)
        assert [float(cell) for cell in shown.split(" | ")] == pytest.approx([*map(float, cells)], rel=2e-3)
    drawn, there = frames.draw(runs), frames.PICTURE.read_text()
    assert numbers.sub("", drawn) == numbers.sub("", there), "run `python -m results.frames`"
    assert [*map(float, numbers.findall(drawn))] == pytest.approx([*map(float, numbers.findall(there))], abs=2)


@pytest.mark.documentation
def test_comparison(capsys, monkeypatch):
    page = DOCS / "comparison.md"
    quick = {name: replace(configuration, epochs=1) for name, configuration in PRESETS.items()}
    monkeypatch.setattr("guided_collapse.experiments.presets.PRESETS", quick)
    names = run_python(page)
    assert len(names["last"]) == 4
    assert Path("report/report.html").exists()
    assert Path("digits.pdf").exists()
    assert "nearest-etf" in capsys.readouterr().out
    write_folders(Path("my_images"), num_per_class=6, size=32)
    for words in commands(page):
        if words[:2] == ["compare", "--data"]:
            words += ["--width", "0.125", "--batch-size", "9", *QUICK]
        elif words[:2] == ["compare", "digits"]:
            words += QUICK
        elif words[0] == "report":
            words[-2:] = ["1"]  # an epoch that these short runs have
        else:
            continue
        assert main(words) == 0, words
    for name in ("config.json", "metrics.jsonl", "margins.npz", "last.ckpt", "model.safetensors"):
        assert Path("runs/digits/fixed-etf/seed-0", name).exists()


@pytest.mark.documentation
def test_several_devices():
    (block,) = blocks(DOCS / "several-devices.md", "python")
    Path("example.py").write_text(block["code"])
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "example.py"], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.split()[-1]) > 0.9


@pytest.mark.parametrize("file", PAGES, ids=lambda file: str(file.relative_to(ROOT)))
def test_every_command_is_understood_and_every_link_leads_somewhere(file, monkeypatch):
    for words in command_lines(file):
        check_request(words, monkeypatch)
    for target in re.findall(r"\]\((?!http)([^)#]+)", file.read_text()):
        assert (file.parent / target).exists(), target
