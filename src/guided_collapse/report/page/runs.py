"""The end of the page: what was run, on what, and what went wrong."""

from collections.abc import Sequence

from guided_collapse.records.reading import Records
from guided_collapse.records.run import Run
from guided_collapse.records.text import shortened
from guided_collapse.report.experiment import Experiment
from guided_collapse.report.facts import machines, span
from guided_collapse.report.page.markup import listing, table_html, tag, text
from guided_collapse.report.tables.table import Table, words


def runs_notice(records: Records) -> str:
    """One line, for the top of the page, if not all runs count in full; nothing if they do."""
    states = [run.state for run in records.runs]
    counts = {
        "failed": states.count("failed"),
        "unfinished": states.count("unfinished"),
        "could not be read": len(records.skipped),
    }
    said = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    return (
        tag("p", text(f"Not all runs count in full: {said}. "), tag("a", "See the runs", href="#runs"), class_="problems")
        if said
        else ""
    )


def runs_section(records: Records, experiments: Sequence[Experiment], tables: Sequence[Table]) -> str:
    """Counts, everything that failed or is unfinished or could not be read, the experiments, the runs and the machines."""
    states = [run.state for run in records.runs]
    counts = [
        ("experiment" if len(experiments) == 1 else "experiments", len(experiments)),
        ("run" if len(states) == 1 else "runs", len(states)),
        *((state, states.count(state)) for state in ("finished", "unfinished", "failed")),
        ("records left out", len(records.skipped)),
    ]
    tiles = [
        tag(
            "li",
            tag("b", text(count)),
            tag("span", text(name)),
            class_="bad" if count and name in ("failed", "records left out") else False,
        )
        for name, count in counts
    ]
    parts = [tag("h2", "Runs and machines"), tag("ul", *tiles, class_="tiles"), _problems(records)]
    if experiments:
        parts.append(table_html(_experiments_table(experiments)))
        parts.append(tag("h3", "Hardware and versions"))
        parts += [
            tag(
                "p",
                text(f"{count} {'run' if count == 1 else 'runs'}: {hardware}."),
                tag("br"),
                text(f"Versions: {versions}. Commit: {commit}."),
            )
            for hardware, versions, commit, count in machines(records.runs)
        ]
    return tag("section", *parts, *map(table_html, tables), id="runs")


def _problems(records: Records) -> str:
    failed = [
        f"{_name(run)} failed: {shortened(run.error or 'no reason recorded')}" for run in records.runs if run.state == "failed"
    ]
    unfinished = [f"{_name(run)} is unfinished: {_progress(run)}" for run in records.runs if run.state == "unfinished"]
    skipped = [f"Left out: {message}" for message in records.skipped]
    if not failed and not unfinished and not skipped:
        return tag("p", "Every run finished, and every record could be read.", class_="good")
    says = "Failed runs count in no median; unfinished ones as far as they have come."
    return tag(
        "div",
        tag("h3", "Failed, unfinished or unreadable"),
        listing([*failed, *unfinished, *skipped]),
        tag("p", says),
        class_="problems",
    )


def _experiments_table(experiments: Sequence[Experiment]) -> Table:
    rows, columns = (
        [],
        ("experiment", "heads", "seeds", "epochs", "protocol", "classes", "features", "train", "test", "global batch"),
    )
    for experiment in experiments:
        runs = experiment.runs
        lasts = [int(run.epochs.numbers[-1]) if len(run.epochs.numbers) else 0 for run in runs]
        values = [
            experiment.name,
            ", ".join(experiment.heads),
            ", ".join(map(str, sorted({run.seed for run in runs}))),
            span(lasts),
            ", ".join(dict.fromkeys(run.protocol for run in runs)),
            *(
                span([getattr(run, name) for run in runs])
                for name in ("num_classes", "feature_dim", "num_train", "num_test", "global_batch")
            ),
        ]
        rows.append(tuple(words(value) for value in values))
    return Table("experiments", "Experiments", 1, columns, tuple(rows), ())


def _name(run: Run) -> str:
    return f"{run.experiment}, {run.head}, seed {run.seed}"


def _progress(run: Run) -> str:
    done = int(run.epochs.numbers[-1]) if len(run.epochs.numbers) else 0
    return f"{done} epochs" if run.planned is None else f"{done} of {run.planned} epochs"
