"""What is declared once arrives everywhere: a head, a network and a data set that a module of a user's own adds."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.data.made_up import write_folders

ADDITION = """
from guided_collapse.backbones import declared as backbones
from guided_collapse.data import known
from guided_collapse.records import heads

heads.declare(
    heads.HeadDeclaration("steady", "Steady ETF", "St", 4, "guided_collapse.heads.fixed:FixedETFHead", options={"centre": False})
)
backbones.declare(
    backbones.BackboneDeclaration("shallow", "addition:Shallow", ("in_channels", "affine", "feature_dim"))
)
known.KNOWN["patterns"] = known.KnownData(3, 8, 3, 18, 6, (0.5,) * 3, (0.25,) * 3)

from guided_collapse.experiments import presets  # after what it may name

presets.PRESETS["patterns-shallow"] = presets.Configuration(
    "patterns-shallow", data="patterns", backbone="shallow", batch_size=6, epochs=2
)


def __getattr__(name):
    if name != "Shallow":
        raise AttributeError(name)
    from guided_collapse.backbones.small import SmallConvNet

    class Shallow(SmallConvNet):
        pass

    return Shallow
"""
CALL = "import sys, addition; from guided_collapse.cli import main; sys.exit(main(sys.argv[1:]))"


def call(folder: Path, *words: str) -> str:
    path = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", CALL, *words], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_head_a_network_and_a_data_set_are_each_one_declaration(tmp_path):
    (tmp_path / "addition.py").write_text(ADDITION)
    write_folders(tmp_path / "data" / "patterns", num_per_class=6)
    listed = call(tmp_path, "list")
    assert ["patterns-shallow", "patterns", "shallow,"] in [line.split()[:3] for line in listed.splitlines()]
    assert "steady" in listed
    flags = ("--heads", "steady", "--seeds", "0", "--accelerator", "cpu", "--quiet", "--data-root", str(tmp_path / "data"))
    printed = call(tmp_path, "compare", "patterns-shallow", *flags, "--out", str(tmp_path / "runs"))
    assert "steady" in printed
    facts = json.loads((tmp_path / "runs" / "patterns-shallow" / "steady" / "seed-0" / "config.json").read_text())
    assert facts["configuration"]["backbone"] == "shallow"
    page = (tmp_path / "runs" / "patterns-shallow" / "report" / "report.html").read_text()
    assert "steady" in page
