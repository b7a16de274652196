"""The distributions: they build and pass the index's check, and the wheel alone does what it says, or says what it lacks."""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import guided_collapse
from guided_collapse.experiments.cli.commands import COMMANDS
from tests.test_docs import ROOT, blocks

pytestmark = [pytest.mark.wheel, pytest.mark.timeout(1200)]

UV = Path(sys.executable).parent / "uv"
DATA = """
import torch
generator = torch.Generator().manual_seed(0)
centers, labels = torch.randn(10, 20, generator=generator), torch.arange(400) % 10
inputs = centers[labels] + 0.3 * torch.randn(400, 20, generator=generator)
loader = [(inputs[start : start + 100], labels[start : start + 100]) for start in range(0, 400, 100)] * 20
"""
# What each command is asked, and the package that it lacks: all need the extra `experiments`.
ASKED = {
    "list": (["list"], "tyro"),
    "train": (["train", "digits"], "tyro"),
    "compare": (["compare", "digits"], "tyro"),
    "search": (["search", "digits", "--grid", "learning_rate=0.1"], "tyro"),
    "resume": (["resume", "."], "tyro"),
    "report": (["report", ".", "--out", "report"], "tyro"),
    "data": (["data", "digits"], "tyro"),
    "export": (["export", ".", "--to", "model.onnx"], "tyro"),
    "measure": (["measure", "features.npz"], "tyro"),
}


def run(*words, **options):
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False, **options)


@pytest.fixture(scope="module")
def distributions(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dist")
    done = run(UV, "build", "--quiet", "--out-dir", folder, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    (wheel,), (source,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, source


@pytest.fixture(scope="module")
def environment(distributions, tmp_path_factory):
    """An environment with the wheel and what it requires, and nothing else; commands are run in an empty folder beside it."""
    folder = tmp_path_factory.mktemp("clean")
    python = folder / "environment" / "bin" / "python"
    for words in (
        ["venv", "--quiet", "--python", sys.executable, folder / "environment"],
        ["pip", "install", "--quiet", "--python", python, "-c", ROOT / "constraints.txt", distributions[0]],
    ):
        done = run(UV, *words)
        assert done.returncode == 0, done.stderr
    (folder / "work").mkdir()
    return python


def in_python(environment, script):
    done = run(environment, "-I", "-W", "error", "-c", script, cwd=environment.parents[2] / "work")
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_index_would_take_them(distributions):
    done = run(UV, "tool", "run", "twine", "check", "--strict", *distributions)
    assert done.returncode == 0, done.stdout + done.stderr


def test_they_hold_the_package_and_no_results(distributions):
    wheel, source = distributions
    files = {name.split("/", 1)[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert files == {"guided_collapse", f"guided_collapse-{guided_collapse.__version__}.dist-info"}
    held = zipfile.ZipFile(wheel).namelist()
    for name in ("py.typed", "report/page/templates/page.html", "report/page/assets/page.css", "data/tiny_imagenet_100.txt"):
        assert f"guided_collapse/{name}" in held
    with tarfile.open(source) as archive:
        names = archive.getnames()
    assert not [name for name in names if "/results/re" in name and "/results/README" not in name]
    assert source.stat().st_size < 2_000_000


def test_every_public_name_is_there(environment):
    names = ", ".join(guided_collapse.__all__)
    assert in_python(environment, f"from guided_collapse import {names}; print(Classifier.__name__)") == "Classifier\n"


def test_the_example_of_the_readme_trains(environment):
    example, _ = (block["code"] for block in blocks(ROOT / "README.md", "python"))
    example = example.partition("exported = ")[0]
    printed = in_python(environment, f"{DATA}\n{example}\nprint((predictions == labels).float().mean().item())")
    assert float(printed) > 0.9


def test_every_command_is_asked():
    assert list(ASKED) == list(COMMANDS)


@pytest.mark.parametrize("command", ASKED)
def test_a_command_works_or_says_what_to_install(environment, command):
    words, lacking = ASKED[command]
    folder = environment.parents[2] / "work"
    in_python(environment, "import numpy; numpy.savez('features.npz', features=numpy.eye(4), labels=numpy.arange(4) % 2)")
    done = run(environment.parent / "guided-collapse", *words, cwd=folder)
    if lacking is None:
        assert (done.returncode, done.stderr) == (0, "")
        return
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("guided-collapse: "), line
    assert line.endswith(f"Run: pip install {lacking}, or install guided-collapse with its extra experiments."), line


@pytest.mark.parametrize(
    ("script", "package", "extra"),
    [
        ("from guided_collapse import load_runs; load_runs('.')", "pandas", "notebook"),
        ("from guided_collapse import plot_collapse; plot_collapse(None)", "matplotlib", "notebook"),
        ("from guided_collapse import Classifier; Classifier.from_pretrained('me/model')", "safetensors", "hub"),
    ],
)
def test_a_function_says_what_to_install(environment, script, package, extra):
    caught = f"try:\n    {script}\nexcept ImportError as error:\n    print(error)"
    said = f"Run: pip install {package}, or install guided-collapse with its extra {extra}.\n"
    assert in_python(environment, caught).endswith(said)
