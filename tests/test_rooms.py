"""Rooms import only rooms above them."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "guided_collapse"
ORDER = [
    "records",
    "geometry",
    "paper",
    "heads",
    "metrics",
    "optim",
    "backbones",
    "data",
    "sharing",
    "training",
    "profiling",
    "experiments",
    "report",
    "integrations",
    "cli",
]
EVERYWHERE = {"errors", "lazy", "optional"}
ALLOWED = {
    "records": set(),
    "geometry": set(),
    "paper": {"geometry"},
    "heads": {"geometry"},
    "metrics": {"records", "geometry", "heads"},
    "optim": set(),
    "backbones": set(),
    "data": {"records"},
    "sharing": {"records", "heads", "backbones"},
    "report": {"records"},
    "integrations": {"heads", "metrics", "data"},
}


def imported_rooms(file: Path) -> set[str]:
    rooms = set()
    for node in ast.walk(ast.parse(file.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: imports are absolute here"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        rooms |= {name.split(".")[1] for name in names if name.startswith("guided_collapse.")}
    return rooms


@pytest.mark.parametrize("file", sorted(SOURCE.rglob("*.py")), ids=lambda file: str(file.relative_to(SOURCE)))
def test_a_room_imports_only_rooms_above_it(file):
    room = file.relative_to(SOURCE).parts[0].removesuffix(".py")
    if room == "__init__":
        return
    if room in EVERYWHERE:
        assert imported_rooms(file) <= EVERYWHERE
        return
    assert room in ORDER, f"{room} is not a room of the architecture"
    allowed = ALLOWED.get(room, set(ORDER[: ORDER.index(room)])) | {room} | EVERYWHERE
    assert imported_rooms(file) <= allowed


def test_the_check_sees_imports():
    assert imported_rooms(SOURCE / "heads" / "nearest.py") == {"geometry", "heads"}


def test_nothing_imports_what_is_not_everywhere():
    for file in SOURCE.rglob("*.py"):
        for node in ast.parse(file.read_text()).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not {name.split(".")[0] for name in names} & {"torchvision", "timm", "pymanopt"}, file
