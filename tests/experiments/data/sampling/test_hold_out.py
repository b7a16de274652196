import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from guided_collapse.experiments.data.sampling.hold_out import hold_out


@settings(max_examples=100)
@given(counts=st.lists(st.integers(2, 40), min_size=1, max_size=8), share=st.floats(0, 1), seed=st.none() | st.integers(0, 3))
def test_every_class_has_its_share_in_both_parts(counts, share, seed):
    labels = torch.from_numpy(np.random.default_rng(0).permutation(np.repeat(np.arange(len(counts)), counts)))
    least, most = len(counts), sum(counts) - len(counts)
    num_test = least + round(share * (most - least))
    parts = hold_out(labels, num_test, seed=seed)
    assert sorted(parts.train.tolist() + parts.test.tolist()) == list(range(len(labels)))
    assert parts.train.tolist() == sorted(parts.train.tolist())
    assert len(parts.test) == num_test
    held = labels[parts.test].bincount(minlength=len(counts))
    for count, found in zip(counts, held.tolist(), strict=True):
        assert 1 <= found <= count - 1
    if min(counts) * num_test >= sum(counts) and all(count * num_test / sum(counts) <= count - 1 for count in counts):
        # No class is at a limit, so each is within one of its proportional share.
        assert max(abs(found - count * num_test / sum(counts)) for count, found in zip(counts, held.tolist(), strict=True)) < 1


def test_the_seed_decides():
    labels = torch.arange(100) % 2
    first = hold_out(labels, 20, seed=0).test
    assert torch.equal(first, hold_out(labels, 20, seed=0).test)
    assert not torch.equal(first, hold_out(labels, 20, seed=1).test)
    even = hold_out(torch.zeros(10, dtype=torch.int64), 2, seed=None).test
    assert even.tolist() == [2, 7]


@pytest.mark.parametrize(("labels", "num_test"), [([0, 0, 1], 1), ([0, 0, 1, 1], 1), ([0, 0, 1, 1], 3)])
def test_parts_that_would_lack_a_class(labels, num_test):
    with pytest.raises(ValueError, match="both parts need a sample of every class"):
        hold_out(torch.tensor(labels), num_test, seed=0)
