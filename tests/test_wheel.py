"""The distributions build and pass the index's check, and the wheel alone works, or names the package it lacks."""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import guided_collapse
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
    package = ROOT / "src" / "guided_collapse"
    for file in package.rglob("*.*"):
        assert "__pycache__" in file.parts or f"guided_collapse/{file.relative_to(package)}" in held, file
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


def test_the_command_says_what_to_install(environment):
    done = run(environment.parent / "guided-collapse", "list")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("guided-collapse: "), line
    assert line.endswith(
        "Install guided-collapse with its extra experiments, as in pip install '.[experiments]', or tyro alone."
    ), line
