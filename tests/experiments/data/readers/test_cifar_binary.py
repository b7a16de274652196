import pytest

from guided_collapse.experiments.data.known import KNOWN
from guided_collapse.experiments.data.readers.archives import load_archive
from tests.experiments.data.made_up import write_cifar100_binary, write_tarball
from tests.experiments.data.readers.test_cifar_package import same


def load(path):
    return load_archive(path, name="cifar100", known=KNOWN["cifar100"], cache=path.parent / "decoded.npz")


def test_rows_become_images(tmp_path):
    written = write_cifar100_binary(tmp_path / "cifar.tar.gz", 120, 30)
    data = load(tmp_path / "cifar.tar.gz")
    assert same(data, written)
    assert data.num_classes == 100
    assert data.class_names[7] == "class_7"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"test.bin": None}, r"must be the binary version of CIFAR-100; it lacks test\.bin"),
        ({"train.bin": bytes(3075)}, r"train\.bin in .* must have 3074 bytes for each image; it has 3075"),
        ({"train.bin": b""}, "it has 0"),
        ({"train.bin": b"\x00\x64" + bytes(3072)}, "below its 100 classes; got 100"),
    ],
)
def test_damaged_members_are_named(tmp_path, changes, message):
    members = {"train.bin": bytes(3074), "test.bin": bytes(3074), "fine_label_names.txt": b"\n".join([b"a"] * 100), **changes}
    write_tarball(tmp_path / "cifar.tar.gz", {f"cifar/{name}": value for name, value in members.items() if value is not None})
    with pytest.raises(ValueError, match=message):
        load(tmp_path / "cifar.tar.gz")
