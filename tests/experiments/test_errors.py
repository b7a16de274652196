import errno

import pytest

from guided_collapse.experiments.data.sources import MissingData
from guided_collapse.experiments.errors import DamageError, RequestError, WorkError, requested


@pytest.mark.parametrize("kind", [ValueError, UnicodeError])
def test_a_value_that_is_refused_while_words_are_checked_is_a_wrong_request(kind):
    with pytest.raises(RequestError, match=r"^it must be positive$") as said, requested():
        raise kind("it must be positive")
    assert type(said.value.__cause__) is kind


@pytest.mark.parametrize("kind", [RequestError, MissingData, DamageError, WorkError, RuntimeError, KeyError, MemoryError])
def test_other_kinds_stay_what_they_are(kind):
    error = kind("words")
    with pytest.raises(kind) as said, requested():
        raise error
    assert said.value is error


@pytest.mark.parametrize("number", [errno.ENOENT, errno.EACCES, errno.EROFS, errno.EISDIR])
def test_a_place_that_cannot_be_used_is_a_wrong_request(number):
    with pytest.raises(RequestError, match=r"^no: folder$"), requested():
        raise OSError(number, "no", "folder")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.ETIMEDOUT])
def test_what_the_system_fails_at_on_the_way_is_not(number):
    with pytest.raises(OSError, match="no") as said, requested():
        raise OSError(number, "no", "folder")
    assert said.value.errno == number


def test_wrong_requests_and_damage_are_still_values_that_are_refused():
    assert issubclass(RequestError, ValueError)
    assert issubclass(DamageError, ValueError)
    assert issubclass(WorkError, RuntimeError)
