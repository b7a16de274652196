import math

import pytest

from guided_collapse.lazy import MissingPackageError, optional


def test_a_package_that_is_there():
    assert optional("math", extra="nothing") is math


@pytest.mark.parametrize(("package", "shown"), [(None, "no_such_package"), ("no-such-package", "no-such-package")])
def test_a_package_that_is_not(package, shown):
    with pytest.raises(MissingPackageError, match=f"needs the package {shown}, which cannot be imported: No module") as caught:
        optional("no_such_package.part", extra="hub", package=package)
    assert str(caught.value).endswith(f"Install guided-collapse with its extra hub, as in pip install '.[hub]', or {shown} alone.")
    assert isinstance(caught.value, ImportError)
    assert isinstance(caught.value, ValueError)
