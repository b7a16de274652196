"""What a search says: its settings in words, and the table of its trials."""

import statistics
from collections.abc import Mapping
from typing import Any

from guided_collapse.records.schema import SearchRecord
from guided_collapse.records.text import aligned

TRIALS = "trials"
"""The folder of the trials, beside the record; a report shows what the record says of them instead."""


def setting_in_words(settings: Mapping[str, Any]) -> str:
    """The values of the searched fields, "learning_rate=0.1,temperature=5"; those of the experiment if there are none."""
    return ",".join(f"{name}={value:g}" for name, value in settings.items()) or "as-it-is"


def trials_table(record: SearchRecord) -> str:
    """Every setting of every head, with its accuracy on the validation images, and which was chosen."""
    rows = [["head", "setting", "validation acc %", ""]]
    for (head, setting), values in _by_setting(record).items():
        chosen = head in record.choice and setting == setting_in_words(record.choice[head])
        shown = "diverged" if None in values else f"{100 * statistics.fmean(value or 0.0 for value in values):.4g}"
        rows.append([head, setting, shown, "chosen" if chosen else ""])
    return "\n".join(aligned(rows))


def _by_setting(record: SearchRecord) -> dict[tuple[str, str], list[float | None]]:
    """The accuracies of all seeds, by head and setting."""
    found: dict[tuple[str, str], list[float | None]] = {}
    for trial in record.trials:
        found.setdefault((trial.head, setting_in_words(trial.settings)), []).append(trial.top1)
    return dict(sorted(found.items(), key=lambda entry: record.heads.index(entry[0][0])))
