"""Public names are imported on first use, and lightweight uses import no heavy packages."""

import ast
import doctest
import inspect
import io
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

import guided_collapse
from guided_collapse.experiments.cli import main

PACKAGES = ["guided_collapse", "guided_collapse.experiments", "guided_collapse.metrics"]


@pytest.mark.parametrize("package", [*PACKAGES, "guided_collapse.experiments.report"])
def test_every_public_name_is_the_one_that_type_checkers_see(package):
    module = import_module(package)
    (seen,) = (node for node in ast.parse(Path(module.__file__).read_text()).body if isinstance(node, ast.If))
    homes = {alias.name: node.module for node in seen.body for alias in node.names}
    assert sorted(homes) == sorted(module.__all__)
    for name, home in homes.items():
        assert getattr(module, name) is getattr(sys.modules[home], name)
        assert name in dir(module)
        assert find_spec(f"{package}.{name}") is None, "a module of that name could stand in for it"
    assert not hasattr(module, "nothing_of_that_name")


@pytest.mark.parametrize("name", [*guided_collapse.__all__, "nc1", "nc2", "nc3", "nc4"])
def test_the_example_of_every_public_name_runs(name):
    check_examples(getattr(guided_collapse.metrics if name.startswith("nc") else guided_collapse, name))


def check_examples(public):
    """Runs the examples of a docstring as a reader would, with nothing imported beforehand."""
    examples = doctest.DocTestParser().get_doctest(inspect.getdoc(public), {}, public.__name__, None, 0)
    assert examples.examples
    output = io.StringIO()
    assert doctest.DocTestRunner().run(examples, out=output.write).failed == 0, output.getvalue()


def test_a_report_needs_no_torch_and_a_training_step_no_torchmetrics_and_no_compiler():
    script = (
        "import sys, guided_collapse.experiments.cli, guided_collapse.experiments, guided_collapse.metrics\n"
        "from guided_collapse.experiments.report import write_report\n"
        "from guided_collapse.experiments import preset, Placement\n"
        "assert 'torch' not in sys.modules\n"
        "import torch\n"
        "from guided_collapse import NearestETFHead\n"
        "features = torch.randn(6, 4, requires_grad=True)\n"
        "NearestETFHead(4, 3)(features, torch.arange(6) % 3).sum().backward()\n"
        "assert not {'torchmetrics', 'torch._dynamo', 'sympy'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_command_says_which_package_it_lacks(monkeypatch, capsys):
    for module in ("guided_collapse.experiments.cli.requests", "guided_collapse.experiments.cli.commands"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setitem(sys.modules, "tyro", None)
    assert main(["train", "digits"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("Install guided-collapse with its extra experiments, as in pip install '.[experiments]', or tyro alone.")


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (["list"], 0),
        (["train", "digits", "--hed", "fixed-etf"], 2),
        (["compare", "digits", "--seed", "1"], 2),
        (["search", "digits", "--grid", "scale"], 2),
    ],
)
def test_what_is_not_run_needs_no_torch(words, status):
    script = (
        "import sys, guided_collapse.experiments.cli\n"
        "try:\n"
        "    status = guided_collapse.experiments.cli.main(sys.argv[1:])\n"
        "except SystemExit as end:\n"
        "    status = end.code\n"
        f"assert status == {status}\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script, *words], check=True, capture_output=True)
