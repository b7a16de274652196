"""The records of runs as one table of pandas, and back to what a figure takes."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from guided_collapse.experiments.records.declared.quantities import QUANTITIES, Quantity
from guided_collapse.experiments.records.epochs import Epochs, read_epoch_records
from guided_collapse.experiments.records.reading import read_records
from guided_collapse.experiments.records.run import Run
from guided_collapse.experiments.records.schema import SPLITS, EpochRecord
from guided_collapse.lazy import optional

if TYPE_CHECKING:
    from pandas import DataFrame

FACTS = ("experiment", "head", "seed", "state", "num_classes", "feature_dim", "loss_lower_bound")
NEEDED = (*FACTS, "epoch", "seconds")


def load_runs(folder: str | Path) -> "DataFrame":
    """All runs below a folder as a table of pandas, one row for each run and epoch.

    Columns are `experiment`, `head`, `seed`, `state` ("finished", "unfinished" or "failed"), `num_classes`, `feature_dim`,
    `loss_lower_bound`, `epoch`, and `seconds` of training; `train_...` and `test_...` for every metric that was measured, in eval
    mode, under the name that it is recorded with (`train_nc1`, `test_top1`), NaN in epochs without a measurement; and
    `configuration_...` for what was asked for. A run without an epoch has no row.

    Args:
        folder: what `guided-collapse train` or `compare` wrote to, or any folder above it.

    Raises:
        ValueError: if there are no runs that can be read, or pandas is missing.

    Example:
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> from guided_collapse import load_runs
        >>> from guided_collapse.experiments import Configuration, Placement
        >>> from guided_collapse.experiments.training.loop import train
        >>> sizes = {"num_classes": 4, "feature_dim": 8, "num_samples": 40, "batch_size": 40}
        >>> short = Configuration("short", data="unconstrained", backbone="unconstrained", head="fixed-etf", epochs=2, **sizes)
        >>> with TemporaryDirectory() as folder:
        ...     _ = train(short, Placement(out=Path(folder), quiet=True, accelerator="cpu"))
        ...     runs = load_runs(folder)
        >>> runs[["experiment", "head", "epoch"]].values.tolist()
        [['short', 'fixed-etf', 1], ['short', 'fixed-etf', 2]]
    """
    pandas = optional("pandas", extra="notebook")
    runs = read_records([Path(folder)]).runs
    if not runs:
        raise ValueError(f"there must be at least one run below {folder}; there are only costs.")
    rows = [_row(run, record) for run in runs for record in read_epoch_records(run.folder)]
    columns = sorted({name for row in rows for name in row} - set(NEEDED), key=_place)
    return pandas.DataFrame(rows, columns=[*NEEDED, *columns])


def quantities_of(table: "DataFrame") -> dict[str, Quantity]:
    """What a table has measurements of that can be shown over epochs, by column."""
    columns = {f"{quantity.split}_{quantity.name}": quantity for quantity in QUANTITIES}
    return {name: quantity for name, quantity in columns.items() if name in table and table[name].notna().any()}


def epochs_of(table: "DataFrame") -> Epochs:
    """The measurements of one run of a table."""
    values = {(quantity.split, quantity.name): _floats(table[name]) for name, quantity in quantities_of(table).items()}
    return Epochs(table["epoch"].to_numpy(dtype=np.int64), _floats(table["seconds"]), values)


def _floats(column: Any) -> Any:
    return column.to_numpy(dtype=np.float64)


def _row(run: Run, record: EpochRecord) -> dict[str, Any]:
    facts = {name: getattr(run, name) for name in FACTS}
    measured = {f"{split}_{name}": value for split in SPLITS for name, value in record.measured(split).items()}
    return {**facts, "epoch": record.epoch, "seconds": record.seconds, **measured, **_configuration(run.configuration)}


def _configuration(configuration: Mapping[str, Any]) -> dict[str, Any]:
    """Of what a run was asked for, what the table does not have already; lists as tuples, so that one can group by them."""
    asked = {name: value for name, value in configuration.items() if name not in FACTS}
    return {f"configuration_{name}": tuple(value) if isinstance(value, list) else value for name, value in asked.items()}


def _place(column: str) -> tuple[int, str]:
    """Metrics that are shown over epochs first, in their order, then the others, then what was asked for."""
    shown = [f"{quantity.split}_{quantity.name}" for quantity in QUANTITIES]
    if column in shown:
        return shown.index(column), column
    return len(shown) + column.startswith("configuration_"), column
