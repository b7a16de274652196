import math

import pytest

from guided_collapse.data.optional import optional


def test_a_package_that_is_there():
    assert optional("math", install="nothing") is math


def test_a_package_that_is_not():
    with pytest.raises(ValueError, match=r"needs the package no_such_package.*Run: pip install 'guided-collapse\[hub\]'"):
        optional("no_such_package.part", install="guided-collapse[hub]")
