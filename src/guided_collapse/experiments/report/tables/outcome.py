"""What training comes to: the one number of each head that a reader asks for first."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from guided_collapse.experiments.records.declared.quantities import NC1, TEST_TOP1, TRAIN_LOSS, TRAIN_TOP1, Quantity
from guided_collapse.experiments.records.run import Run
from guided_collapse.experiments.report.experiment import Experiment
from guided_collapse.experiments.report.styles import in_order
from guided_collapse.experiments.report.summaries import Spread, at_epoch, spread
from guided_collapse.experiments.report.tables.accuracy import seed_notes
from guided_collapse.experiments.report.tables.table import Table, epochs_text, short_text, words

# Of the loss to its lower bound: this near, only the shape is left to improve.
NEAR_THE_BOUND = 1.01


@dataclass(frozen=True)
class Outcome:
    """The outcome of an experiment.

    Attributes:
        title: what the numbers are.
        quantity: whose curve leads to them.
        percent: whether they are per cent.
        spreads: median and range over seeds, of each head that has any.
    """

    title: str
    quantity: Quantity
    percent: bool
    spreads: Mapping[str, Spread]


def outcome(experiment: Experiment) -> Outcome:
    """Accuracy at the end, on test samples if there are any. Free features have none: how soon their loss is near the least."""
    if experiment.has_test:
        return _accuracy(experiment, TEST_TOP1)
    if experiment.unconstrained and experiment.reaches_the_bound:
        found = {head: [_epochs_to_the_bound(run) for run in experiment.of(head)] for head in experiment.heads}
        spreads = {head: spread(epochs) for head, epochs in found.items() if epochs}
        return Outcome(f"epochs to {NEAR_THE_BOUND} times the least loss", TRAIN_LOSS, False, spreads)
    return _accuracy(experiment, TRAIN_TOP1)


def outcome_table(experiment: Experiment) -> Table:
    """The outcome of each head, and beside it the loss and the variability within classes that training ended with."""
    found = outcome(experiment)
    rows = []
    for head in experiment.heads:
        ends = (at_epoch(experiment.of(head), quantity, None) for quantity in (TRAIN_LOSS, NC1))
        texts = (
            short_text(found.spreads.get(head), percent=found.percent),
            *(short_text(end.spread if end else None) for end in ends),
        )
        rows.append((words(head), *map(words, texts)))
    counts = {len(runs) for head in experiment.heads for runs in (experiment.of(head), experiment.all_of(head))}
    return Table(
        name="outcome",
        title=_title(counts),
        stub=1,
        columns=("head", found.title, "train loss", "NC1"),
        rows=tuple(rows),
        csv_rows=(),
        notes=tuple(seed_notes([experiment])) if len(counts) > 1 else (),
    )


def outcomes_table(experiments: Sequence[Experiment]) -> Table:
    """The outcome of every experiment, heads as columns."""
    heads = in_order(head for experiment in experiments for head in experiment.heads)
    rows = []
    for experiment in experiments:
        found = outcome(experiment)
        texts = (short_text(found.spreads.get(head), percent=found.percent) for head in heads)
        rows.append(tuple(map(words, (experiment.name, found.title, *texts))))
    return Table("outcomes", "Results: median and range over seeds", 2, ("experiment", "result", *heads), tuple(rows), ())


def _title(counts: set[int]) -> str:
    """What the numbers are over, where that is the same for all heads."""
    if counts == {1}:
        return "Results of one seed"
    return f"Results: median and range over {f'{min(counts)} seeds' if len(counts) == 1 else 'seeds'}"


def _accuracy(experiment: Experiment, quantity: Quantity) -> Outcome:
    found = {head: at_epoch(experiment.of(head), quantity, None) for head in experiment.heads}
    known = {head: at for head, at in found.items() if at}
    epochs = epochs_text(tuple(epoch for at in known.values() for epoch in at.epochs)) if known else "0"
    after = f"after {epochs} {'epoch' if epochs == '1' else 'epochs'}"
    return Outcome(f"{quantity.split} accuracy {after}, %", quantity, True, {head: at.spread for head, at in known.items()})


def _epochs_to_the_bound(run: Run) -> float:
    """When the train loss is first measured near its lower bound."""
    losses = run.epochs.of(TRAIN_LOSS.split, TRAIN_LOSS.name)
    near = run.epochs.numbers[losses <= NEAR_THE_BOUND * (run.loss_lower_bound or 0.0)]
    return float(near[0]) if len(near) else math.inf
