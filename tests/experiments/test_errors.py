import errno

import pytest

from guided_collapse.experiments.data.sources import MissingData
from guided_collapse.experiments.errors import DamageError, RequestError, WorkError, requested


@pytest.mark.parametrize("error", [ValueError("no: folder"), OSError(errno.ENOENT, "no", "folder")])
def test_values_and_places_that_cannot_be_used_are_wrong_requests(error):
    with pytest.raises(RequestError, match=r"^no: folder$") as said, requested():
        raise error
    assert said.value.__cause__ is error


@pytest.mark.parametrize(
    "error", [RequestError(), MissingData(), DamageError(), WorkError(), MemoryError(), OSError(errno.ENOSPC, "no", "folder")]
)
def test_other_kinds_stay_what_they_are(error):
    with pytest.raises(type(error)) as said, requested():
        raise error
    assert said.value is error
