"""Rebuilds everything made from `results/records`: the report in `results/report`, and the tables in README.md, results and docs.

    python -m results.build

The page, `results/report/report.html`, is not under version control, because it is large and quick to rebuild.
Tables are between `<!-- from the records: NAME -->` and `<!-- end -->`.
"""

import json
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.cost_tables import cost_table, memory_table
from guided_collapse.experiments.report import write_report
from guided_collapse.experiments.report.formats import Table, markdown
from results import pretrained_tables, tables

HERE = Path(__file__).parent
PAGES = (HERE.parent / "README.md", HERE / "README.md", *sorted((HERE.parent / "docs").glob("*.md")))
TABLE = re.compile(r"(?<=<!-- from the records: )([\w ]+) -->\n.*?(?=<!-- end -->)", flags=re.DOTALL)
# The epochs in the report's accuracy tables.
EPOCHS = (1, 5, 20)
KEPT = {".html", ".png", ".md"}


def build_report(records: Path, out: Path) -> None:
    """Replaces the report; leaves out the files for print, and adds the cost tables."""
    with tempfile.TemporaryDirectory() as folder:
        files = write_report(sorted(records.glob("*.zip")), Path(folder), epochs=EPOCHS).files
        shutil.rmtree(out, ignore_errors=True)
        for file in files:
            if file.suffix in KEPT:
                place = out / file.relative_to(folder)
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, place)
    costs = [json.loads(file.read_text()) for file in sorted((records / "cost").glob("*.json"))]
    for table in (cost_table(costs), memory_table(costs)):
        text = markdown(Table(table.name, table.title, table.cells, notes=table.notes))
        (out / "tables" / f"{table.name}.md").write_text(text)


def all_tables(records: Path) -> dict[str, list[str]]:
    """Returns every table of the pages by name, as lines of Markdown."""
    return tables.all_tables(records) | pretrained_tables.all_tables(records)


def with_tables(page: str, made: Mapping[str, Sequence[str]]) -> str:
    """Returns a page with its tables rebuilt from the records."""
    return TABLE.sub(lambda found: f"{found[1]} -->\n\n" + "\n".join(made[found[1]]) + "\n\n", page)


if __name__ == "__main__":
    build_report(HERE / "records", HERE / "report")
    made = all_tables(HERE / "records")
    for file in PAGES:
        file.write_text(with_tables(file.read_text(), made))
