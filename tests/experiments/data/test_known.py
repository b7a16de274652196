import pytest

from guided_collapse.experiments.data.known import KNOWN, known_data


@pytest.mark.parametrize("name", KNOWN)
def test_facts_fit_together(name):
    known = known_data(name)
    assert len(known.mean) == len(known.std) == known.channels
    assert all(0 < value < 1 for value in (*known.mean, *known.std))
    assert known.class_names is None or len(set(known.class_names)) == known.num_classes
    assert all(len(checksum) == 64 for checksum in known.checksums.values())
    assert all(archive.home in KNOWN and len(archive.md5 or "0" * 32) == 32 for archive in known.archives)
    assert bool(known.archives) == bool(known.archive_reader)


def test_an_unknown_name_gets_the_nearest():
    with pytest.raises(ValueError, match=r"must be one of digits, mnist.*got 'cifar-100'. Did you mean cifar100\?"):
        known_data("cifar-100")
    with pytest.raises(ValueError, match=r"got 'zebra'\.$"):
        known_data("zebra")
