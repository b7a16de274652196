"""Rebuilds what is made from `results/records`: the report in `results/report`, and the tables in README.md and results/README.md.

    python -m results.build

Tables stand between `<!-- from the records: NAME -->` and `<!-- end -->`.
"""

import re
import shutil
import tempfile
from pathlib import Path

from guided_collapse.report.write import write_report
from results.figures import all_blocks

HERE = Path(__file__).parent
# At which the tables of accuracy look: the last of the runs on images, and of the unconstrained features.
EPOCHS = (5, 10, 20, 300, 2000)
KEPT = {".html", ".png", ".md"}
PAGES = (HERE.parent / "README.md", HERE / "README.md")
BLOCK = re.compile(r"(?<=<!-- from the records: )([\w-]+)( -->\n)(.*?)(?=<!-- end -->)", flags=re.DOTALL)


def build_report(records: Path, out: Path) -> None:
    """The report without the files for print."""
    with tempfile.TemporaryDirectory() as folder:
        for file in write_report([records], Path(folder), epochs=EPOCHS).files:
            if file.suffix in KEPT:
                place = out / file.relative_to(folder)
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, place)


def with_tables(text: str, records: Path) -> str:
    """A page with its tables as the records have them."""
    blocks = all_blocks(records)
    return BLOCK.sub(lambda found: f"{found[1]}{found[2]}\n" + "\n".join(blocks[found[1]]) + "\n\n", text)


if __name__ == "__main__":
    shutil.rmtree(HERE / "report", ignore_errors=True)
    build_report(HERE / "records", HERE / "report")
    for page in PAGES:
        page.write_text(with_tables(page.read_text(), HERE / "records"))
