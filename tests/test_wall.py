"""The library never imports the experiments, and imports nothing but torch, numpy and torchmetrics until something else is used."""

import ast
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "guided_collapse"
LIBRARY = sorted(file for file in SOURCE.rglob("*.py") if file.relative_to(SOURCE).parts[0] != "experiments")
ALLOWED = {*sys.stdlib_module_names, "torch", "numpy", "torchmetrics", "guided_collapse"}


def imported(node):
    """The modules that a statement imports."""
    if isinstance(node, ast.ImportFrom):
        assert node.level == 0, "imports are absolute here"
        return [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return [alias.name for alias in node.names] if isinstance(node, ast.Import) else []


@pytest.mark.parametrize("file", LIBRARY, ids=lambda file: str(file.relative_to(SOURCE)))
def test_the_library_stays_on_its_side(file):
    tree = ast.parse(file.read_text())
    in_functions = {id(part) for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) for part in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):  # modules that are imported by name
            assert not node.value.startswith(("guided_collapse.experiments", "experiments.")), node.value
        for name in imported(node):
            assert not f"{name}.".startswith("guided_collapse.experiments.")
            assert id(node) in in_functions or name.split(".")[0] in ALLOWED, name
