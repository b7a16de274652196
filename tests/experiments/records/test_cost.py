import json

import pytest

from guided_collapse.experiments.records.fields import RecordError
from guided_collapse.experiments.records.reading import read_cost
from guided_collapse.experiments.records.schema import HeadCost
from tests.experiments.report.made_up import write_cost


def test_costs_are_read_row_by_row(tmp_path):
    record = read_cost(write_cost(tmp_path, "toy"))
    assert record.experiment == "toy"
    assert record.rows[0] == HeadCost("cosine", 1.25, 2.5, 0.25, 0.5, 12.0, 10, None)
    assert record.rows[3] == HeadCost("paper-route", 12345.6, None, 12000.0, None, None, 10, "does not fit")
    assert record.conditions == {"batch_size": 256, "precision": "32-true"}
    assert record.hardware == {"cpu": "Abacus", "cores": 2}


@pytest.mark.parametrize(
    "changes",
    [
        {"format": 2},
        {"kind": "run"},
        {"rows": None},
        {"rows": [3]},
        {"rows": [{"head": "a", "forward_ms": "slow"}]},
        {"rows": [{"head": "a", "forward_ms": -1.0}]},
        {"rows": [{"head": "a", "peak_mb": -1}]},
        {"rows": [{"head": "a", "forward_ms": 1e250}]},
        {"rows": [{"forward_ms": 1.0}]},
        {"experiment": 1},
    ],
)
def test_what_is_no_record_of_costs_is_refused(changes, tmp_path):
    path = write_cost(tmp_path)
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    with pytest.raises(RecordError, match="must be"):
        read_cost(path)
