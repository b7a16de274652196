"""The verdict on a comparison, from records alone: which head is ahead, and is its lead larger than chance explains?

Heads are compared on the same seeds, which share the initial network and the batches. The lead of head A over head B on S seeds is
d = mean_s (a_s - b_s). Its interval, d - h to d + h, combines the variation between seeds with the variation between samples of
n test images:

    h^2 = (t_{S-1} sd_s(a_s - b_s) / sqrt(S))^2 + (z e)^2

The first term is the t interval of paired seeds. It does not cover the second, because all seeds are tested on the same images; e
is `error_of_difference`. Records hold accuracies, not which images were wrong, so the images cannot be paired as in McNemar's test.
That makes h too wide rather than too narrow: equal heads differ by more than h in at most 5% of comparisons. With k heads against
one reference, t and z are the quantiles for 5%/k, so that this holds for all of them together (Bonferroni).

Without test images, h is the square root of the first term alone. If the heads are compared by numbers of epochs, the largest step
between two measured epochs is added to h.
"""

import math
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from scipy.special import ndtri, stdtrit

from guided_collapse.experiments.presets import FEATURES, FINE_TUNING, OWN_IMAGES, PRESETS, named_after
from guided_collapse.experiments.records import MARGIN, NC1, TRAIN_LOSS, Run
from guided_collapse.experiments.report.formats import wrapped
from guided_collapse.experiments.report.styles import label
from guided_collapse.experiments.report.summaries import Experiment, Outcome, at_epoch, measured, outcome, seconds_of
from guided_collapse.metrics.intervals import error_of_difference

Call = Literal["ahead", "behind", "draw", "too few seeds", "nothing to compare"]
RISK = 0.05  # the risk of calling a head ahead or behind when all heads are equal
FEWEST_SEEDS = 3  # with two seeds, the t interval has only one degree of freedom


@dataclass(frozen=True)
class Verdict:
    """The conclusion of a comparison."""

    call: Call  # the call on the best head against the reference
    headline: str  # which head is ahead, in a sentence
    details: str = ""  # how the other heads compare, which head is the most collapsed, and the training times
    advice: str = ""  # what to do next
    command: str = ""  # the command that follows the advice, if there is one
    best: str = ""  # the label of the head with the largest lead
    reference: str = ""  # the label of nn.Linear or, without finished runs of it, of the first head
    lead: str = ""  # the lead of the best head over the reference, with its interval

    @property
    def text(self) -> str:
        """The verdict without advice on what to do next."""
        return f"{self.headline} {self.details}".strip()

    def __str__(self) -> str:
        """Returns the verdict for a terminal."""
        parts = [wrapped(self.text)]
        if self.advice:
            parts.append(wrapped(f"Next: {self.advice}"))
        if self.command:
            parts.append(wrapped(self.command, " \\\n    "))
        return "\n".join(parts)


class Lead(NamedTuple):
    """The lead of one head over another (negative if it is behind), and its interval."""

    mean: float
    low: float
    high: float
    limit: float  # the part of the half-width that more seeds would not reduce

    @property
    def call(self) -> Call:
        """Whether the interval is above zero, below it, or contains it."""
        return "ahead" if self.low > 0 else "behind" if self.high < 0 else "draw"


def lead_over(own: Sequence[float], other: Sequence[float], num_test: int, *, step: float = 0.0, risk: float = RISK) -> Lead:
    """Returns the lead of one head over another and its interval, by the formula in the docstring of this module.

    Args:
        own, other: values for the same seeds, where larger is better; with test images, these are accuracies from 0 to 1.
        num_test: number of test images; 0 for values that are not accuracies.
        step: resolution of the values, added to the half-width.
        risk: probability that the interval misses zero if the heads are equal.
    """
    differences = np.subtract(own, other)
    mean, seeds = float(differences.mean()), len(differences)
    of_seeds, of_images = math.inf, 0.0
    if seeds > 1:
        of_seeds = -float(stdtrit(seeds - 1, risk / 2)) * float(differences.std(ddof=1)) / math.sqrt(seeds)
    if num_test:
        of_images = -float(ndtri(risk / 2)) * error_of_difference(float(np.mean(own)), float(np.mean(other)), num_test)
    half = math.hypot(of_seeds, of_images) + step
    return Lead(mean, mean - half, mean + half, of_images + step)


def verdict(runs: Sequence[Run], *, searched: bool = False) -> Verdict:
    """Returns the verdict on every head against nn.Linear, or against the first head if nn.Linear has no finished run.

    Args:
        runs: the runs of one experiment; only finished ones count.
        searched: True if a search chose the settings of each head, so that the verdict does not recommend one.
    """
    experiment = Experiment("", tuple(run for run in runs if run.state == "finished"))
    judged = outcome(experiment)
    reference, *others = [*judged.values] or [""]
    others = [head for head in others if judged.values[head].keys() & judged.values[reference].keys()]
    missing = len(runs) - len(experiment.runs)
    repeat = f"repeat the command, which resumes the {missing} of {len(runs)} runs that did not finish." if missing else ""
    if not others:
        found = f"only {label(reference)} has" if reference else "no head has"
        text = f"Nothing to compare: {found} finished runs."
        return Verdict("nothing to compare", text, advice=repeat or "train two or more heads with the same seeds.")
    leads = {head: _lead(experiment, judged, head, reference, RISK / len(others)) for head in others}
    shared = {head: sorted(judged.values[head].keys() & judged.values[reference].keys()) for head in others}
    best = max(others, key=lambda head: (len(shared[head]) >= FEWEST_SEEDS, leads[head].mean))
    seeds = shared[best]
    call = leads[best].call if len(seeds) >= FEWEST_SEEDS else "too few seeds"
    lead = _lead_text(experiment, judged, leads[best], call, len(seeds), joint=len(others) > 1)
    if any(math.isinf(judged.values[head][seed]) for head in (best, reference) for seed in seeds):
        lead = f"at least {lead}"
    headline, *more = _comparison(judged, leads, best, reference, call, lead)
    advice, command = _next(experiment, seeds, leads[best], call, searched)
    if repeat:
        advice, command = repeat, ""
    details = " ".join([*more, *_details(experiment, best, reference)])
    return Verdict(call, headline, details, advice, command, label(best), label(reference), lead)


def _lead(experiment: Experiment, judged: Outcome, head: str, other: str, risk: float) -> Lead:
    runs = {(run.head, run.seed): run for run in experiment.runs}
    pairs, steps = [], [0]
    for seed in judged.values[head].keys() & judged.values[other].keys():
        pair = []
        for name in (head, other):
            value, numbers = judged.values[name][seed], measured(runs[name, seed], TRAIN_LOSS).index
            if judged.unit == "epochs":
                steps += np.diff(numbers, prepend=0).tolist()
            # A run that never gets near the floor counts as if it did so at its last epoch, so the lead over it is a lower bound.
            pair.append(value if math.isfinite(value) else float(numbers[-1]))
        pairs.append(pair)
    own, others = np.transpose(pairs) * (-1 if judged.lower_is_better else 1) / judged.quantity.factor
    num_test = experiment.runs[0].num_test if judged.percent else 0
    found = lead_over(own, others, num_test, step=max(steps), risk=risk)
    return Lead(*(judged.quantity.factor * value for value in found))


def _lead_text(experiment: Experiment, judged: Outcome, lead: Lead, call: Call, seeds: int, *, joint: bool) -> str:
    """Returns the lead, as in "+0.28 points (95% interval -1.00 to +1.56; 3 seeds, 360 test images, each 0.28 points)"."""
    sign = "" if lead.low > 0 else "+"
    form = f"{sign}.2f" if judged.percent else f"{sign},.0f" if judged.unit == "epochs" else f"{sign}.3g"
    mean, low, high = (format(value, form) for value in lead[:3])
    basis = f"{seeds} {'seed' if seeds == 1 else 'seeds'}"
    if judged.percent:
        num_test = experiment.runs[0].num_test
        basis += f", {num_test:,} test images" + (f", each {100 / num_test:.2g} points" if num_test <= 1000 else "")
    interval = "" if call == "too few seeds" else f"{'joint ' * joint}95% interval {low} to {high}; "
    return f"{mean} {'points' if judged.percent else 'epochs sooner' if judged.unit else 'lower'} ({interval}{basis})"


def _comparison(judged: Outcome, leads: Mapping[str, Lead], best: str, reference: str, call: Call, lead: str) -> list[str]:
    """Returns sentences, the answer first: which head is ahead, in what and by how much, and where the other heads stand."""
    named, of, what = label(best), label(reference), judged.title.removesuffix(", %")
    groups: dict[Call, list[str]] = {}
    for head, found in leads.items():
        if head != best:
            groups.setdefault(found.call, []).append(label(head))
    said: dict[Call, str] = {"ahead": "Also ahead", "draw": f"Level with {of}", "behind": "Behind"}
    if call == "ahead":
        sentences = [f"{named} is ahead of {of} in {what}: {lead}."]
    elif call == "behind":
        sentences, said = [f"{of} is ahead in {what}.", f"{'Best of the others: ' * (len(leads) > 1)}{named}, {lead}."], {}
    elif call == "too few seeds":
        sentences, said = [f"Too few seeds to tell {named} from {of} in {what}: {lead}."], {}
    elif len(leads) == 1:
        sentences = [f"Draw: in {what}, {named} and {of} differ by no more than equally good heads can.", f"{named}: {lead}."]
    else:
        sentences = [f"Draw: in {what}, no head leads {of} by more than equally good heads can."]
        sentences.append(f"Best of the others: {named}, {lead}.")
        del said["draw"]
    return [*sentences, *(f"{words}: {'; '.join(groups[group])}." for group, words in said.items() if group in groups)]


def _details(experiment: Experiment, best: str, reference: str) -> list[str]:
    """Returns which head is the most collapsed, and how long the best head trains, as far as the records show."""
    sentences = []
    spreads = {head: found for head in experiment.heads if (found := at_epoch(experiment.of(head), NC1))}
    if len(spreads) > 1:
        least = min(spreads, key=lambda head: spreads[head].median)
        against = best if least == reference else reference
        if against in spreads and spreads[least].high < spreads[against].low:
            values = [f"NC1 {spreads[least].median:.3g}, against {spreads[against].median:.3g} for {label(against)}"]
            margins = [f"{found.median:.3g}" for head in (least, against) if (found := at_epoch(experiment.of(head), MARGIN))]
            if len(set(margins)) == 2:
                values.append(f"cosine margin {margins[0]}, against {margins[1]}")
            sentences.append(f"{label(least)} is the most collapsed ({'; '.join(values)}).")
    times = [float(np.median([seconds_of(run) for run in experiment.of(head)])) for head in (best, reference)]
    if all(map(math.isfinite, times)):
        sentences.append(f"A run takes {_time(times[0])} with {label(best)} and {_time(times[1])} with {label(reference)}.")
    return sentences


def _time(seconds: float) -> str:
    return f"{seconds:.2g} s" if seconds < 60 else f"{seconds / 60:.2g} min" if seconds < 3600 else f"{seconds / 3600:.2g} h"


def _next(experiment: Experiment, seeds: list[int], lead: Lead, call: Call, searched: bool) -> tuple[str, str]:
    """Returns advice on how to settle the comparison or make it fairer, and the command to run."""
    run = experiment.runs[0]
    rate = "gain" if run.configuration.get("optimizer") == "agd" else "learning_rate"
    limited = call == "draw" and abs(lead.mean) < lead.limit
    if call == "too few seeds" or (call == "draw" and not limited):
        more = [*seeds, *range(max(seeds) + 1, max(seeds) + 1 + max(5 - len(seeds), len(seeds)))]
        words, note = _request(experiment)
        command = f"guided-collapse compare {words} --seeds {' '.join(map(str, more))}"
        return f"more seeds, with the same --out; finished runs are kept.{note}", command
    if not run.num_test:
        return "", ""
    advice = f"with {run.num_test:,} test images, no number of seeds shows a lead below {lead.limit:.2g} points. " * limited
    if searched:
        return advice and f"{advice}A larger test set can.", ""
    words, note = _request(experiment, but={rate, "scale"})
    grid = {field: run.configuration.get(field) for field in (rate, "scale")}
    values = [f"{field}={','.join(f'{value * factor:g}' for factor in (0.5, 1, 2))}" for field, value in grid.items() if value]
    command = f"guided-collapse search {words} --grid {' '.join(values or ['scale=2.5,5,10'])}"
    return f"{advice}{'Search' if advice else 'search'} for the best settings of each head.{note}", command


def _request(experiment: Experiment, but: Collection[str] = ()) -> tuple[str, str]:
    """Returns the arguments of `compare` for these runs, without the fields in `but`, and a note on flags that they leave out."""
    runs = [run for run in experiment.runs if run.head != "anchored"] or experiment.runs  # only `upgrade` trains that head
    asked, name = runs[0].configuration, runs[0].experiment
    is_pretrained = asked.get("pretrained") or asked.get("weights")
    own = FEATURES if asked.get("backbone") == "none" else FINE_TUNING if is_pretrained else OWN_IMAGES
    start = PRESETS.get(name, own).resolved().to_dict()
    data = str(asked.get("data", ""))
    words = [name] if name in PRESETS else ["--features" if own == FEATURES else "--data", data]
    if name not in (*PRESETS, named_after(data)):
        words += ["--experiment", name]
    values = {(field, value) for run in runs for field, value in run.configuration.items() if value is not None}
    changed = {field for field, value in values if value != start.get(field, value)}
    changed -= {"experiment", "data", "head", "seed", "upgrade_of", "trace", *but}
    unequal = {field for field in changed if sum(own == field for own, _ in values) > 1}
    for field in sorted(changed - unequal):
        flag, value = field.replace("_", "-"), asked[field]
        words += [f"--{flag}" if value else f"--no-{flag}"] if isinstance(value, bool) else [f"--{flag}", str(value)]
    words += ["--heads", *(head for head in experiment.heads if head != "anchored")]
    return shlex.join(words), f" Add the settings of each head: {', '.join(sorted(unequal))}." if unequal else ""
