"""What is imported when: a user who asks for little waits for little."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import guided_collapse

SOURCE = Path(guided_collapse.__file__)


def test_every_public_name_is_the_one_that_type_checkers_see():
    imports = [node for node in ast.walk(ast.parse(SOURCE.read_text())) if isinstance(node, ast.ImportFrom)]
    homes = {alias.name: node.module for node in imports for alias in node.names if node.module.startswith("guided_collapse.")}
    assert sorted(homes) == guided_collapse.__all__
    for name, home in homes.items():
        assert getattr(guided_collapse, name) is getattr(sys.modules[home], name)
        assert name in dir(guided_collapse)
    assert not hasattr(guided_collapse, "nothing_of_that_name")


def test_a_report_needs_no_torch_and_a_training_step_no_torchmetrics_and_no_compiler():
    script = (
        "import sys, guided_collapse.cli, guided_collapse.report.write\n"
        "assert 'torch' not in sys.modules\n"
        "import torch\n"
        "from guided_collapse import NearestETFHead\n"
        "features = torch.randn(6, 4, requires_grad=True)\n"
        "NearestETFHead(4, 3)(features, torch.arange(6) % 3).sum().backward()\n"
        "assert not {'torchmetrics', 'torch._dynamo', 'sympy'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize(
    ("words", "status"),
    [(["list"], 0), (["train", "digits", "--hed", "fixed"], 2), (["compare", "digits", "--seed", "1"], 2), (["cost", "digit"], 2)],
)
def test_what_is_not_run_needs_no_torch(words, status):
    script = (
        "import sys, guided_collapse.cli\n"
        "try:\n"
        "    status = guided_collapse.cli.main(sys.argv[1:])\n"
        "except SystemExit as end:\n"
        "    status = end.code\n"
        f"assert status == {status}\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script, *words], check=True, capture_output=True)
