"""Builds `report.html`, a single file that makes no requests. This module collects its contents, and templates lay them out."""

import base64
import hashlib
import importlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from guided_collapse.experiments.records import QUANTITIES, Records, Run, one_line, short_commit, shortened
from guided_collapse.experiments.report.formats import MEDIAN_AND_RANGE, Table, number_text
from guided_collapse.experiments.report.formulas import mathml
from guided_collapse.experiments.report.page_data import Animation, Panel, animations_of, page_data, panels_of
from guided_collapse.experiments.report.styles import HeadStyle, label
from guided_collapse.experiments.report.summaries import ABOVE_FLOOR, Experiment, outcome, span
from guided_collapse.experiments.report.tables import end_tables, outcome_table, pairs_table, verdicts_table
from guided_collapse.experiments.report.verdict import Verdict, verdict

SCRIPTS = ("state.js", "curves.js", "reading.js", "animation.js", "controls.js")
# Names of the tables that are shown with each experiment or with the runs, and not in the list of other tables.
ELSEWHERE = ("pairs", "final", "epochs-to-accuracy", "seconds-to-accuracy", "runs")
PROTOCOLS = {
    "fair": ", every head with the same stratified batches and, except for nn.Linear, the same centering",
    "paper": ", every head as in the paper",
}
SIZES = {"num_classes": "classes", "feature_dim": "features", "num_train": "training samples", "num_test": "test samples"}
OWN = ("experiment", "head", "seed")  # fields that identify a run


def page(records: Records, experiments: Sequence[Experiment], tables: Sequence[Table], styles: Mapping[str, HeadStyle]) -> str:
    """Returns the page as HTML with plotly.js inlined. Its content security policy allows only its own scripts, and no requests."""
    searched = {search.experiment for search in records.searches}
    verdicts = {each.name: verdict(each.runs, searched=each.name in searched) for each in experiments}
    panels = [panels_of(experiment) for experiment in experiments]
    animations = [animations_of(experiment) for experiment in experiments]
    plotly = _script(importlib.import_module("plotly.offline").get_plotlyjs())
    own = _script("\n".join(_asset(name) for name in SCRIPTS))
    machines = Counter(
        (_listed(run.hardware), _listed(run.versions), short_commit(run.commit or "not recorded")) for run in records.runs
    )
    titles = {panel.title for of_experiment in panels for panel in of_experiment}
    template = templates().get_template("page.html")
    return template.render(
        policy=_policy(plotly, own),
        style=Markup(_asset("page.css")),
        heads={label(head): style for head, style in styles.items()},
        calls=Counter(found.call for found in verdicts.values()),
        verdicts=verdicts_table(verdicts),
        experiments=[experiment_section(*parts) for parts in zip(experiments, verdicts.values(), panels, animations, strict=True)],
        tables=[table for table in tables if table.name not in ELSEWHERE],
        records=records,
        states=Counter(run.state for run in records.runs),
        machines=machines,
        run_table=next(table for table in tables if table.name == "runs"),
        definitions=[quantity for quantity in (ABOVE_FLOOR, *QUANTITIES) if quantity.title in titles],
        data=page_data(panels, animations, styles),
        plotly=Markup(plotly),
        script=Markup(own),
    )


def templates() -> Environment:
    """Returns the template environment. Names may contain anything, so every string is put on one line and escaped."""
    environment = Environment(
        loader=PackageLoader("guided_collapse.experiments.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: one_line(value) if isinstance(value, str) and not isinstance(value, Markup) else value,
    )
    environment.filters |= {"number": number_text, "in_parts": _in_parts, "label": label, "mathml": mathml, "shortened": shortened}
    return environment


def _in_parts(cell: str) -> list[str]:
    """Returns the median, the range and the rest of a cell, or only the cell itself if it has no range."""
    found = MEDIAN_AND_RANGE.fullmatch(cell)
    if found is None or found[2] is None:
        return [cell]
    return [part for part in (found[1], f"({found[2]} to {found[3]})", found[4].removeprefix(",").strip()) if part]


def experiment_section(
    experiment: Experiment, judged: Verdict, panels: Sequence[Panel], animations: Sequence[Animation]
) -> dict[str, Any]:
    """Returns the content of an experiment's section: the answer first, then the curves, tables and settings behind it."""
    titles = [panel.title for panel in panels]
    main = outcome(experiment).quantity.title
    shared, differences = configurations(experiment)
    return {
        "name": experiment.name,
        "verdict": judged,
        "outcome": outcome_table(experiment),
        "panels": dict(enumerate(panels)),
        "main": titles.index(main) if main in titles else None,
        "animations": animations,
        "sizes": ", ".join(f"{span([getattr(run, size) for run in experiment.runs])} {name}" for size, name in SIZES.items()),
        "protocol": "; ".join(protocols(experiment)),
        "tables": [table for table in (pairs_table([experiment]), *end_tables([experiment])) if len(table.cells)],
        "differences": differences,
        "shared": shared,
    }


def configurations(experiment: Experiment) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Returns the settings that all runs share, and the settings that differ, each value with its heads."""
    shared, differences = [], []
    for name in dict.fromkeys(name for run in experiment.runs for name in run.configuration if name not in OWN):
        heads = _heads_by_text((_text(run.configuration.get(name)), run) for run in experiment.runs)
        if len(heads) == 1:
            shared.append((name, next(iter(heads))))
        else:
            differences.append((name, "; ".join(f"{value} ({found})" for value, found in heads.items())))
    return shared, differences


def _heads_by_text(texts: Iterable[tuple[str, Run]]) -> dict[str, str]:
    heads: dict[str, dict[str, None]] = {}
    for text, run in texts:
        heads.setdefault(text, {})[run.head] = None
    return {text: ", ".join(found) for text, found in heads.items()}


def protocols(experiment: Experiment) -> list[str]:
    """Returns the protocols of an experiment, with their heads if there are several, and the differences between heads."""
    heads = _heads_by_text((run.protocol, run) for run in experiment.runs)
    lines = [f"{name}{PROTOCOLS.get(name, '')}" + (f" ({found})" if len(heads) > 1 else "") for name, found in heads.items()]
    own = _heads_by_text((difference, run) for run in experiment.runs for difference in run.protocol_differences)
    all_heads = ", ".join(dict.fromkeys(run.head for run in experiment.runs))
    return lines + [text if found == all_heads else f"{found}: {text}" for text, found in own.items()]


def _listed(entries: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {_text(value)}" for name, value in entries.items()) or "not recorded"


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _asset(name: str) -> str:
    return files("guided_collapse.experiments.report").joinpath("assets", name).read_text(encoding="utf-8")


def _script(source: str) -> str:
    # Browsers normalize line breaks to \n before they hash a script.
    unified = source.replace("\r\n", "\n").replace("\r", "\n")
    return re.sub(r"<(/script|!--)", r"<\\\1", unified, flags=re.IGNORECASE)


def _policy(*scripts: str) -> str:
    hashes = (base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii") for script in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes)
    rest = "style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; form-action 'none'"
    return f"default-src 'none'; script-src {allowed}; {rest}"
