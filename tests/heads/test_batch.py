import torch

from guided_collapse.heads.batch import batch_mean, class_totals

# In float32 the 1 would be lost.
CANCELLING = torch.tensor([[1e8], [1.0], [-1e8]])


def test_sums_that_nearly_cancel_are_exact():
    sums, counts = class_totals(CANCELLING, torch.zeros(3, dtype=torch.int64), 2)
    assert sums.tolist() == [[1.0], [0.0]]
    assert counts.tolist() == [3, 0]
    torch.testing.assert_close(batch_mean(CANCELLING), torch.tensor([1 / 3]))
