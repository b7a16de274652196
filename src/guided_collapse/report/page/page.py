"""`report.html`: one file that needs nothing else, and asks for nothing."""

import base64
import hashlib
import importlib
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files

from guided_collapse.records.quantities import QUANTITIES
from guided_collapse.records.reading import Records
from guided_collapse.report.experiment import Experiment
from guided_collapse.report.figures.panels import panels_of, thinned
from guided_collapse.report.figures.picture import pictures_of
from guided_collapse.report.looks import Look
from guided_collapse.report.page.cost import cost_section
from guided_collapse.report.page.data import page_data
from guided_collapse.report.page.experiment import experiment_section
from guided_collapse.report.page.markup import table_html, tag, text
from guided_collapse.report.page.runs import runs_notice, runs_section
from guided_collapse.report.tables.outcome import outcomes_table
from guided_collapse.report.tables.table import Table

SCRIPTS = ("state.js", "curves.js", "reading.js", "picture.js", "controls.js")
# Those that each experiment's own part has already.
ELSEWHERE = frozenset({"pairs", "final", "epochs-to-accuracy", "seconds-to-accuracy"})
COSTS = frozenset({"cost", "memory"})
RUNS = frozenset({"runs"})


def page(records: Records, experiments: Sequence[Experiment], tables: Sequence[Table], looks: Mapping[str, Look]) -> str:
    """The page as HTML, with plotly.js inside. A policy lets it run its own scripts only, and make no request."""
    shown, most = thinned([panels_of(experiment) for experiment in experiments])
    pictures = [pictures_of(experiment) for experiment in experiments]
    sections = [experiment_section(number, *parts) for number, parts in enumerate(zip(experiments, shown, pictures, strict=True))]
    plotly = _script(importlib.import_module("plotly.offline").get_plotlyjs())
    own = _script("\n".join(_asset(name) for name in SCRIPTS))
    return _fill(
        _asset("template.html"),
        {
            "policy": _policy(plotly, own),
            "style": _asset("page.css") + _colours(looks),
            "navigation": _navigation(experiments, has_costs=bool(records.costs)),
            "notice": runs_notice(records),
            "results": _results(experiments),
            "heads": "".join(_switch(place, head, look) for place, (head, look) in enumerate(looks.items())),
            "experiments": "".join(sections),
            "cost": cost_section(records.costs, [table for table in tables if table.name in COSTS], looks),
            "tables": "".join(table_html(table) for table in tables if table.name not in ELSEWHERE | COSTS | RUNS),
            "runs": runs_section(records, experiments, [table for table in tables if table.name in RUNS]),
            "meanings": "".join(tag("div", tag("dt", text(q.title)), tag("dd", text(q.meaning))) for q in QUANTITIES),
            "thinned": "Every measured epoch is drawn."
            if most is None
            else f"Curves are drawn with at most {most} of their points each.",
            "data": page_data(shown, pictures, looks),
            "plotly": plotly,
            "script": own,
        },
    )


def _asset(name: str) -> str:
    return files("guided_collapse.report.page").joinpath("assets", name).read_text(encoding="utf-8")


def _fill(template: str, parts: Mapping[str, str]) -> str:
    # In one pass, so that nothing that is filled in is taken for a place to fill.
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], template)


def _script(source: str) -> str:
    # Browsers read every line break as \n, and take the hash of that.
    unified = source.replace("\r\n", "\n").replace("\r", "\n")
    return re.sub(r"<(/script|!--)", r"<\\\1", unified, flags=re.IGNORECASE)


def _policy(*scripts: str) -> str:
    hashes = (base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii") for script in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes)
    rest = "style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; form-action 'none'"
    return f"default-src 'none'; script-src {allowed}; {rest}"


def _colours(looks: Mapping[str, Look]) -> str:
    light = "".join(f"--head-{place}:{look.light};" for place, look in enumerate(looks.values()))
    dark = "".join(f"--head-{place}:{look.dark};" for place, look in enumerate(looks.values()))
    return f":root{{{light}}}:root[data-theme=dark]{{{dark}}}"


def _results(experiments: Sequence[Experiment]) -> str:
    # One experiment says them itself.
    return tag("section", table_html(outcomes_table(experiments)), id="results") if len(experiments) > 1 else ""


def _navigation(experiments: Sequence[Experiment], *, has_costs: bool) -> str:
    links = [
        *((f"experiment-{number}", e.name) for number, e in enumerate(experiments)),
        *([("cost", "Cost")] if has_costs else []),
        ("tables", "Tables"),
        ("reading", "How to read this"),
        ("runs", "Runs and machines"),
    ]
    return "".join(tag("a", text(name), href=f"#{place}") for place, name in links)


def _switch(place: int, head: str, look: Look) -> str:
    dashes = {"solid": "", "dash": "7 4", "longdash": "11 4", "dot": "2 3", "dashdot": "8 3 2 3", "longdashdot": "11 3 2 3"}
    pattern = dashes.get(look.dash, look.dash.replace("px", "").replace(",", " "))
    line = tag(
        "line", x1="0", y1="6", x2="34", y2="6", stroke=f"var(--head-{place})", stroke_width="3", stroke_dasharray=pattern or False
    )
    sample = tag("svg", line, width="34", height="12", aria_hidden="true")
    box = tag("input", type="checkbox", class_="head", data_head=str(place), checked=True)
    return tag("label", box, sample, tag("span", text(head)), class_="switch")
