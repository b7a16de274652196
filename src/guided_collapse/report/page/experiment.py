"""The part of the page that shows one experiment."""

from collections.abc import Sequence

from guided_collapse.records.quantities import QUANTITIES
from guided_collapse.report.experiment import Experiment
from guided_collapse.report.facts import configuration_rows, protocols
from guided_collapse.report.figures.panels import Panel
from guided_collapse.report.figures.picture import Picture
from guided_collapse.report.page.markup import pairs, table_html, tag, text
from guided_collapse.report.tables.numbers import figure
from guided_collapse.report.tables.outcome import outcome, outcome_table
from guided_collapse.report.tables.pairs import pairs_table
from guided_collapse.report.tables.summary import final_table, reaching_table
from guided_collapse.report.tables.table import Table, words


def experiment_section(number: int, experiment: Experiment, panels: Sequence[Panel], pictures: Sequence[Picture]) -> str:
    """The answer first, and the animation of the collapse; then all curves, tables and the configuration."""
    parts = [tag("h2", text(experiment.name))]
    shown = {panel.title: _panel(f"{number}-{place}", panel) for place, panel in enumerate(panels)}
    if shown:
        main = shown.pop(outcome(experiment).quantity.title, "")
        parts.append(tag("div", _numbers(experiment), main, class_="answer"))
    else:
        parts.append(tag("p", "No run of this experiment has measurements to show."))
    if pictures:
        parts.append(_pictures(number, pictures))
    parts.append(tag("p", text(f"Protocol: {'; '.join(protocols(experiment))}.")))
    if shown:
        parts += [tag("h3", "More curves"), tag("div", *shown.values(), class_="panels"), _missing(experiment, panels)]
    tables = [
        final_table([experiment]),
        reaching_table([experiment], "epochs"),
        reaching_table([experiment], "seconds"),
    ]
    parts += [table_html(table, without=1) for table in tables if table is not None]
    rows = configuration_rows(experiment)
    differing = [(name, value) for name, value, differs in rows if differs]
    if differing:
        parts.append(tag("div", tag("h3", "Differences between runs"), pairs(differing), class_="problems"))
    same = [(name, value) for name, value, differs in rows if not differs]
    if same:
        parts.append(tag("details", tag("summary", "Settings shared by all runs"), pairs(same)))
    return tag("section", *parts, id=f"experiment-{number}", class_="experiment")


def _numbers(experiment: Experiment) -> str:
    """How well each head does, and which is ahead of which."""
    tables = [(outcome_table(experiment), 0), (pairs_table([experiment]), 1)]
    return tag("div", *(table_html(table, without=without) for table, without in tables if table is not None))


def _panel(place: str, panel: Panel) -> str:
    described = f"words-{place}"
    switch = tag("button", "log", type="button", class_="axis", aria_pressed="false", aria_label=f"logarithmic axis: {panel.title}")
    head = tag("div", tag("h4", text(panel.title)), switch if panel.log is not None else "", class_="panel-head")
    plot = tag(
        "div",
        class_="plot",
        tabindex="0",
        role="group",
        aria_roledescription="chart",
        aria_label=panel.title,
        aria_describedby=described,
    )
    lines = [tag("li", tag("b", text(head)), ": ", text(said)) for head, said in panel.in_words().items()]
    lines += [tag("li", tag("b", text(label)), ": ", text(figure(value))) for label, value in panel.references]
    told = tag("div", tag("p", text(panel.meaning)), tag("ul", *lines), id=described)
    dotted = ", ".join(f"{label} = {figure(value)}" for label, value in panel.references)
    below = tag("p", text(f"Dotted: {dotted}"), class_="note") if dotted else ""
    below += tag("p", class_="note zero") + tag("p", class_="readout", aria_live="polite")
    return tag("figure", head, plot, below, tag("details", tag("summary", "In words"), told), class_="panel", data_panel=place)


def _missing(experiment: Experiment, panels: Sequence[Panel]) -> str:
    shown = {panel.title for panel in panels}
    missing = [q.title for q in QUANTITIES if q.title not in shown and (q.split == "train" or experiment.has_test)]
    return tag("p", text(f"Not measured in these runs: {', '.join(missing)}."), class_="note") if missing else ""


def _pictures(number: int, pictures: Sequence[Picture]) -> str:
    stages = [
        tag(
            "figure",
            tag("h4", text(f"{picture.run.head}, seed {picture.run.seed}")),
            tag("canvas", tabindex="0", role="img", aria_label=f"picture of {picture.run.head}"),
            tag("figcaption", class_="note"),
            class_="stage",
            data_place=str(place),
        )
        for place, picture in enumerate(pictures)
    ]
    play = tag("button", "Play", type="button", class_="play")
    slider = tag("input", type="range", class_="epoch", min="0", value="0", step="1", aria_label="epoch", id=f"epoch-{number}")
    controls = tag("div", play, tag("label", "epoch ", slider), tag("output", "", for_=f"epoch-{number}"), class_="controls")
    says = (
        "A few classes in the space of their own classifier rows. Arrows are the rows of the classifier, large marks the class "
        "means, small marks single samples; marks of one shape belong to one class. At collapse every mark lies on the tip of its "
        "arrow, and the arrows form a regular simplex. Drag a picture, or use the arrow keys on it, to turn it."
    )
    return tag(
        "div",
        tag("div", tag("h3", "The collapse, epoch by epoch"), controls, class_="picture-head"),
        tag("div", *stages, tag("p", says, class_="note"), class_="stages"),
        tag("details", tag("summary", "In numbers"), table_html(_picture_table(pictures))),
        class_="picture",
        data_experiment=str(number),
    )


def _picture_table(pictures: Sequence[Picture]) -> Table:
    rows = []
    for picture in pictures:
        for place in sorted({0, len(picture.spread) // 2, len(picture.spread) - 1}):
            values = (float(picture.spread[place]), float(picture.alignment[place]))
            shown = [figure(value) if value == value else "-" for value in values]
            rows.append(tuple(map(words, (picture.run.head, str(int(picture.trace.epochs[place])), *shown))))
    return Table(
        name="picture",
        title="The animation in numbers",
        stub=2,
        columns=("head", "epoch", "distance of samples from their class mean", "cosine of class means with the classifier"),
        rows=tuple(rows),
        records=(),
        notes=("The distance is relative to that of the class means from their centre. At collapse it is 0, and the cosine 1.",),
    )
