"""Shows on the site what lies outside docs/: the notebooks of examples/, with their output, and the changelog.

mkdocs calls `on_files` and `on_page_markdown` (`hooks` in mkdocs.yml). Pages link to the files of the repository, as they must on a
code host, and the links are turned to the site's pages here.
"""

import base64
import json
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
SHOWN = {"../CHANGELOG.md": "changelog.md", "../CONTRIBUTING.md": "contributing.md"}
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages and the pictures of notebooks."""
    for source, page in SHOWN.items():
        text = (ROOT / "docs" / source).resolve().read_text()
        files.append(File.generated(config, page, content=re.sub(r"\]\(docs/", "](", text)))
    for notebook in NOTEBOOKS:
        text, pictures = as_markdown(json.loads(notebook.read_text()), notebook.stem)
        files.append(File.generated(config, f"examples/{notebook.stem}.md", content=text))
        for name, content in pictures.items():
            files.append(File.generated(config, f"examples/{name}", content=content))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turns links to files that are shown here to their pages."""
    for source, shown in SHOWN.items():
        markdown = markdown.replace(f"]({source}", f"]({shown}")
    inside = page.file.src_uri.startswith("examples/")
    markdown = markdown.replace("](../docs/", "](../") if inside else re.sub(r"\]\(\.\./(examples/)", r"](\1", markdown)
    return re.sub(r"(\]\((?:examples/)?\w+)\.ipynb", r"\1.md", markdown)


def as_markdown(notebook: dict[str, Any], name: str) -> tuple[str, dict[str, bytes]]:
    """The cells and their output, and the pictures in it by file name."""
    parts, pictures = [], {}
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if "image/png" in data:
                picture = f"{name}-{len(pictures)}.png"
                pictures[picture] = base64.b64decode("".join(data["image/png"]))
                parts.append(f"![Output of the cell above]({picture})")
            elif "text/html" in data:
                parts.append("".join(data["text/html"]))
            else:
                parts.append(f"```text\n{''.join(output.get('text', data.get('text/plain', ''))).rstrip()}\n```")
    return "\n\n".join([*parts, f"*This page is the notebook `examples/{name}.ipynb`.*\n"]), pictures
