"""Small made-up data sets in the real file formats. Each writer returns what it wrote, for comparison."""

import gzip
import io
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Images = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int64]


class MadeUp(NamedTuple):
    """uint8 (num, height, width, channels) and int64 (num,) of both splits."""

    train_images: Images
    train_labels: Labels
    test_images: Images
    test_labels: Labels


def make_images(labels: Labels, size: int, channels: int, seed: int) -> Images:
    """Noise whose brightness follows the class, so that a network has something to learn."""
    generator = np.random.default_rng(seed)
    brightness = 40 + 160 * (labels / max(labels.max(), 1))
    noise = generator.integers(-40, 56, (len(labels), size, size, channels))
    return (brightness[:, None, None, None] + noise).clip(0, 255).astype(np.uint8)


def make_up(num_train: int, num_test: int, *, size: int, channels: int, num_classes: int) -> MadeUp:
    train, test = (np.random.default_rng([0, num]).permutation(np.arange(num) % num_classes) for num in (num_train, num_test))
    return MadeUp(make_images(train, size, channels, 0), train, make_images(test, size, channels, 1), test)


def encode(image: Images, file_format: str = "PNG") -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(image.squeeze(-1) if image.shape[-1] == 1 else image).save(buffer, file_format)
    return buffer.getvalue()


def write_tarball(path: Path, members: Mapping[str, bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        for name, contents in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(contents)
            archive.addfile(member, io.BytesIO(contents))


def write_zip(path: Path, members: Mapping[str, bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        for name, contents in members.items():
            archive.writestr(name, contents)


def tiny_imagenet_members(num_per_class: int, num_test: int, *, classes: tuple[str, ...] = ("n02", "n01")) -> dict[str, bytes]:
    """The files of Tiny ImageNet: class folders to train on, and validation and test images in one folder each."""
    top = "tiny-imagenet-200"
    labels = np.repeat(np.arange(len(classes)), num_per_class)
    members = {f"{top}/wnids.txt": "\n".join(classes).encode()}
    for number, image in enumerate(make_images(labels, 64, 3, 0)):
        name = classes[labels[number]]
        members[f"{top}/train/{name}/images/{name}_{number % num_per_class}.JPEG"] = encode(image, "JPEG")
    test_labels = np.arange(num_test) % len(classes)
    lines = [f"val_{number}.JPEG\t{classes[label]}\t0\t0\t63\t63" for number, label in enumerate(test_labels)]
    members[f"{top}/val/val_annotations.txt"] = ("\n".join(lines) + "\n").encode()
    for number, image in enumerate(make_images(test_labels, 64, 3, 1)):
        members[f"{top}/val/images/val_{number}.JPEG"] = encode(image, "JPEG")
        members[f"{top}/test/images/test_{number}.JPEG"] = encode(image, "JPEG")
    return members


def omniglot_members(num_drawings: int = 20, *, top: str = "images_background_small1") -> dict[str, bytes]:
    """The files of Omniglot: three characters of two alphabets; each drawing is brighter than the one before."""
    characters = [("Greek", "character01"), ("Greek", "character02"), ("Latin", "character01")]
    return {
        f"{top}/{alphabet}/{character}/{number:04d}_{drawing:02d}.png": encode(np.full((105, 105, 1), 10 * drawing, dtype=np.uint8))
        for number, (alphabet, character) in enumerate(characters)
        for drawing in range(1, num_drawings + 1)
    }


def cifar_rows(images: Images, *labels: Labels) -> bytes:
    pixels = images.transpose(0, 3, 1, 2).reshape(len(images), -1)
    return np.concatenate([*(column[:, None] for column in labels), pixels], axis=1).astype(np.uint8).tobytes()


def write_cifar10_binary(path: Path, num_per_file: int) -> MadeUp:
    """CIFAR-10 in the binary files of its authors, with that many images in each of the six."""
    data = make_up(5 * num_per_file, num_per_file, size=32, channels=3, num_classes=10)
    parts = zip(np.array_split(data.train_images, 5), np.array_split(data.train_labels, 5), strict=True)
    members = {f"cifar-10-batches-bin/data_batch_{number}.bin": cifar_rows(*part) for number, part in enumerate(parts, 1)}
    members["cifar-10-batches-bin/test_batch.bin"] = cifar_rows(data.test_images, data.test_labels)
    write_tarball(path, {**members, "cifar-10-batches-bin/batches.meta.txt": b"airplane\nautomobile\n\n"})
    return data


def write_cifar100_binary(path: Path, num_train: int, num_test: int) -> MadeUp:
    """CIFAR-100 in the binary files of its authors."""
    data = make_up(num_train, num_test, size=32, channels=3, num_classes=100)
    members = {
        "train.bin": cifar_rows(data.train_images, data.train_labels // 5, data.train_labels),
        "test.bin": cifar_rows(data.test_images, data.test_labels // 5, data.test_labels),
        "fine_label_names.txt": "\n".join(f"class_{label}" for label in range(100)).encode() + b"\n",
    }
    write_tarball(path, {f"cifar-100-binary/{name}": contents for name, contents in members.items()})
    return data


def idx_bytes(array: npt.NDArray[Any], magic: int) -> bytes:
    return magic.to_bytes(4, "big") + b"".join(size.to_bytes(4, "big") for size in array.shape) + array.astype(np.uint8).tobytes()


def write_idx(
    folder: Path, *, num_train: int, num_test: int, size: int = 28, num_classes: int = 10, compressed: bool = True
) -> MadeUp:
    """Four IDX files; `load_data` looks in ROOT/mnist and ROOT/fashion-mnist."""
    data = make_up(num_train, num_test, size=size, channels=1, num_classes=num_classes)
    folder.mkdir(parents=True, exist_ok=True)
    for prefix, images, labels in (("train", *data[:2]), ("t10k", *data[2:])):
        for stem, contents in (
            (f"{prefix}-images-idx3-ubyte", idx_bytes(images[..., 0], 0x803)),
            (f"{prefix}-labels-idx1-ubyte", idx_bytes(labels, 0x801)),
        ):
            name, contents = (f"{stem}.gz", gzip.compress(contents)) if compressed else (stem, contents)
            (folder / name).write_bytes(contents)
    return data


def write_parquet(
    folder: Path,
    *,
    num_train: int,
    num_test: int,
    size: int = 32,
    channels: int = 3,
    num_classes: int = 10,
    image_column: str = "img",
    label_column: str = "label",
    test_part: str = "test",
    num_files: int = 1,
) -> MadeUp:
    """Parquet files as on the hub: an image struct of bytes and path, and a ClassLabel."""
    import datasets

    data = make_up(num_train, num_test, size=size, channels=channels, num_classes=num_classes)
    names = [f"class {label}" for label in range(num_classes)]
    folder.mkdir(parents=True, exist_ok=True)
    for part, images, labels in (("train", *data[:2]), (test_part, *data[2:])):
        features = {image_column: datasets.Image(), label_column: datasets.ClassLabel(names=names)}
        columns = {image_column: [{"bytes": encode(image), "path": None} for image in images], label_column: labels.tolist()}
        if label_column == "fine_label":
            features["coarse_label"], columns["coarse_label"] = datasets.ClassLabel(names=["coarse"]), [0] * len(labels)
        table = datasets.Dataset.from_dict(columns, features=datasets.Features(features))
        for number, indices in enumerate(np.array_split(np.arange(len(labels)), num_files)):
            table.select(indices).to_parquet(str(folder / f"{part}-{number:05d}-of-{num_files:05d}.parquet"))
    return data


def write_folders(
    folder: Path,
    *,
    num_per_class: int,
    classes: tuple[str, ...] = ("cat", "dog", "eel"),
    parts: tuple[str, ...] = ("train", "test"),
    size: int = 16,
    suffix: str = ".png",
) -> Path:
    """Class folders of images, FOLDER/PART/CLASS/NUMBER.png; `parts=("",)` gives FOLDER/CLASS/NUMBER.png."""
    for seed, part in enumerate(parts):
        labels = np.repeat(np.arange(len(classes)), num_per_class)
        for number, (label, image) in enumerate(zip(labels, make_images(labels, size, 3, seed), strict=True)):
            path = folder / part / classes[label] / f"{number:04d}{suffix}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(encode(image, {".png": "PNG", ".jpg": "JPEG"}[suffix]))
    return folder
