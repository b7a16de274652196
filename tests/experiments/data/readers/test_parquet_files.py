import os
import sys

import pytest

from guided_collapse.experiments.data.readers.parquet_files import find_parquet, read_columns
from tests.experiments.data.made_up import write_parquet


def touch(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


def found(folder):
    return {part: [str(path.relative_to(folder)) for path in paths] for part, paths in find_parquet(folder).items()}


def test_files_as_they_lie_on_the_hub(tmp_path):
    names = [
        "plain_text/train-00000-of-00002.parquet",
        "plain_text/train-00001-of-00002.parquet",
        "plain_text/test-00000-of-00001.parquet",
    ]
    touch(tmp_path, *names, "README.md")
    assert found(tmp_path) == {"train": names[:2], "test": names[2:]}


def test_files_with_other_names(tmp_path):
    touch(tmp_path, "default/train/0000.parquet", "default/train/0001.parquet", "validation.parquet")
    touch(tmp_path, "test-00000-of-00001-1544694d2a174d16.parquet")
    assert found(tmp_path) == {
        "train": ["default/train/0000.parquet", "default/train/0001.parquet"],
        "validation": ["validation.parquet"],
        "test": ["test-00000-of-00001-1544694d2a174d16.parquet"],
    }


def test_missing_or_doubled_files(tmp_path):
    touch(tmp_path / "one", "train-00000-of-00003.parquet", "train-00002-of-00003.parquet")
    with pytest.raises(ValueError, match="must hold all files of train; it has 2 of 3"):
        find_parquet(tmp_path / "one")
    touch(tmp_path / "two", "a/train-00000-of-00001.parquet", "b/train-00000-of-00001.parquet")
    with pytest.raises(ValueError, match="must be in one folder"):
        find_parquet(tmp_path / "two")


@pytest.mark.parametrize(("image", "label"), [("img", "label"), ("img", "fine_label"), ("image", "label"), ("image", "labels")])
def test_columns_of_every_known_data_set(tmp_path, image, label):
    write_parquet(tmp_path, num_train=6, num_test=3, size=4, num_classes=3, image_column=image, label_column=label)
    columns = read_columns(find_parquet(tmp_path)["train"])
    assert columns == (image, label, ("class 0", "class 1", "class 2"))


def test_columns_without_the_hub_s_notes(tmp_path):
    import pyarrow
    import pyarrow.parquet

    write_parquet(tmp_path, num_train=6, num_test=3, size=4, num_classes=3)
    path = tmp_path / "train-00000-of-00001.parquet"
    table = pyarrow.parquet.read_table(path)
    pyarrow.parquet.write_table(table.replace_schema_metadata(None), path)
    assert read_columns([path]) == ("img", "label", None)
    pyarrow.parquet.write_table(table.drop_columns(["label"]).replace_schema_metadata(None), path)
    with pytest.raises(ValueError, match=r"column of labels \(fine_label, label, labels\); it has img"):
        read_columns([path])
    with pytest.raises(ValueError, match="must have the same columns"):
        read_columns([tmp_path / "test-00000-of-00001.parquet", path])


@pytest.mark.parametrize("damage", [lambda contents: contents[:-20], lambda contents: b"", lambda contents: b"no parquet" * 9])
def test_damaged_files_are_named(tmp_path, damage):
    write_parquet(tmp_path, num_train=6, num_test=3, size=4, num_classes=3)
    path = tmp_path / "train-00000-of-00001.parquet"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match=f"{path} must be a readable parquet file"):
        read_columns([path])


@pytest.mark.skipif(sys.platform == "win32", reason="it has no pipes with names")
def test_a_pipe_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "train.parquet")
    with pytest.raises(ValueError, match=r"train\.parquet must be a readable parquet file; .*it is not a regular file"):
        read_columns([tmp_path / "train.parquet"])
