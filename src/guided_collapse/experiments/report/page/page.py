"""`report.html`: one file that needs nothing else, and asks for nothing."""

import base64
import hashlib
import importlib
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from guided_collapse.experiments.records.declared.quantities import QUANTITIES
from guided_collapse.experiments.records.reading import Records
from guided_collapse.experiments.records.text import one_line
from guided_collapse.experiments.report.experiment import Experiment
from guided_collapse.experiments.report.page.animation import animations_of
from guided_collapse.experiments.report.page.data import page_data
from guided_collapse.experiments.report.page.panels import panels_of, thinned
from guided_collapse.experiments.report.page.sections import cost_chart, experiment_section, runs_section
from guided_collapse.experiments.report.styles import HeadStyle
from guided_collapse.experiments.report.tables.cost import timed_passes
from guided_collapse.experiments.report.tables.outcome import outcomes_table
from guided_collapse.experiments.report.tables.table import Cell, Table, number_text

SCRIPTS = ("state.js", "curves.js", "reading.js", "animation.js", "controls.js")
# Those that each experiment's own part has already.
ELSEWHERE = frozenset({"pairs", "final", "epochs-to-accuracy", "seconds-to-accuracy"})
COSTS = frozenset({"cost", "counts", "memory"})
RUNS = frozenset({"runs"})
# Those of plotly, as lengths of lines and gaps.
DASHES = {"solid": "", "dash": "7 4", "longdash": "11 4", "dot": "2 3", "dashdot": "8 3 2 3", "longdashdot": "11 3 2 3"}


class Link(NamedTuple):
    """A part of the page: the id of its element, and its name."""

    target: str
    name: str


class HeadSwitch(NamedTuple):
    """A head that can be shown or hidden, and how its line is dashed."""

    name: str
    dashes: str


def page(records: Records, experiments: Sequence[Experiment], tables: Sequence[Table], styles: Mapping[str, HeadStyle]) -> str:
    """The page as HTML, with plotly.js inside. A policy lets it run its own scripts only, and make no request."""
    shown, most_points = thinned([panels_of(experiment) for experiment in experiments])
    animations = [animations_of(experiment) for experiment in experiments]
    plotly = _script(importlib.import_module("plotly.offline").get_plotlyjs())
    own = _script("\n".join(_asset(name) for name in SCRIPTS))
    return (
        templates()
        .get_template("page.html")
        .render(
            policy=_policy(plotly, own),
            style=Markup(_asset("page.css") + _colors(styles)),
            links=_links(experiments, has_costs=bool(records.costs)),
            heads=[HeadSwitch(head, _dashes(style)) for head, style in styles.items()],
            # One experiment says them itself.
            results=outcomes_table(experiments) if len(experiments) > 1 else None,
            experiments=[experiment_section(*parts) for parts in zip(experiments, shown, animations, strict=True)],
            charts=[cost_chart(cost, styles) for cost in records.costs if timed_passes(cost)],
            has_costs=bool(records.costs),
            cost_tables=[table for table in tables if table.name in COSTS],
            tables=[table for table in tables if table.name not in ELSEWHERE | COSTS | RUNS],
            runs=runs_section(records, experiments, [table for table in tables if table.name in RUNS]),
            meanings=[(quantity.title, quantity.meaning) for quantity in QUANTITIES],
            most_points=most_points,
            data=Markup(page_data(shown, animations, styles)),
            plotly=Markup(plotly),
            script=Markup(own),
        )
    )


def templates() -> Environment:
    """What fills in the templates. Names may hold anything: each is put on one line and escaped wherever it stands."""
    environment = Environment(
        loader=PackageLoader("guided_collapse.experiments.report.page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_on_one_line,
    )
    environment.filters |= {"number": number_text, "in_parts": _in_parts}
    environment.tests["from_the_paper"] = _is_from_the_paper
    return environment


def _on_one_line(value: object) -> object:
    return one_line(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _in_parts(cell: Cell) -> list[str]:
    """The median, its range, and what else there is in a cell; all of it in one part if there is no range."""
    found = re.fullmatch(r"(\S+) (\(.+ to [^)]+\))(.*)", cell.text)
    return [cell.text] if found is None else [part.removeprefix(",").strip() for part in found.groups() if part]


def _is_from_the_paper(row: Sequence[Cell], table: Table) -> bool:
    return "source" in table.columns and row[table.columns.index("source")].text == "paper"


def _asset(name: str) -> str:
    return files("guided_collapse.experiments.report.page").joinpath("assets", name).read_text(encoding="utf-8")


def _script(source: str) -> str:
    # Browsers read every line break as \n, and take the hash of that.
    unified = source.replace("\r\n", "\n").replace("\r", "\n")
    return re.sub(r"<(/script|!--)", r"<\\\1", unified, flags=re.IGNORECASE)


def _policy(*scripts: str) -> str:
    hashes = (base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii") for script in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes)
    rest = "style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; form-action 'none'"
    return f"default-src 'none'; script-src {allowed}; {rest}"


def _colors(styles: Mapping[str, HeadStyle]) -> str:
    light = "".join(f"--head-{number}:{style.light};" for number, style in enumerate(styles.values()))
    dark = "".join(f"--head-{number}:{style.dark};" for number, style in enumerate(styles.values()))
    return f":root{{{light}}}:root[data-theme=dark]{{{dark}}}"


def _links(experiments: Sequence[Experiment], *, has_costs: bool) -> list[Link]:
    return [
        *(Link(f"experiment-{number}", experiment.name) for number, experiment in enumerate(experiments)),
        *([Link("cost", "Cost")] if has_costs else []),
        Link("tables", "Tables"),
        Link("reading", "How to read this"),
        Link("runs", "Runs and machines"),
    ]


def _dashes(style: HeadStyle) -> str:
    return DASHES.get(style.dash, style.dash.replace("px", "").replace(",", " "))
