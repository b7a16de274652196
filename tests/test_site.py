"""The documentation site: it builds without a warning, has every public name, and its pages load nothing from elsewhere."""

import functools
import os
import runpy
import subprocess
import sys
import threading
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import unquote, urldefrag, urljoin, urlparse

import pytest

from tests.experiments.report.browser import Browser
from tests.test_imports import PACKAGES, check_examples

pytestmark = [pytest.mark.documentation, pytest.mark.slow]

ROOT = Path(__file__).parent.parent


class Page(HTMLParser):
    """The links of a page, and its own link targets."""

    def __init__(self, text):
        super().__init__()
        self.links, self.names = set(), set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.names |= {found[name] for name in ("id", "name") if found.get(name)}
        if tag in ("a", "link") and found.get("href"):
            self.links.add(found["href"])
        if tag in ("img", "script") and found.get("src"):
            self.links.add(found["src"])


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        """Says nothing."""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def address(site):
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(site)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    thread.join()
    server.server_close()


def pages(site):
    return {file: Page(file.read_text()) for file in sorted(site.rglob("*.html")) if file.name != "404.html"}


def test_no_link_is_dead(site):
    found = pages(site)
    assert len(found) >= len(list((ROOT / "docs").rglob("*.md")))
    for file, page in found.items():
        for link in page.links:
            target, part = urldefrag(urljoin(f"http:///{file.relative_to(site)}", link))
            if urlparse(link).scheme:
                assert urlparse(link).scheme == "https", f"{file}: {link}"
                continue
            place = site / unquote(urlparse(target).path).lstrip("/")
            place = place / "index.html" if place.is_dir() else place
            assert place.exists(), f"{file.relative_to(site)}: {link}"
            if part and place.suffix == ".html":
                assert unquote(part) in found[place].names, f"{file.relative_to(site)}: {link}"


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_is_in_the_reference(site, package):
    names = {name for page in pages(site).values() for name in page.names}
    places = package, "guided_collapse"  # what several packages export has one entry
    assert not [name for name in import_module(package).__all__ if not names & {f"{place}.{name}" for place in places}]


def test_formulas_are_typeset(site):
    texts = {file.relative_to(site): file.read_text() for file in pages(site)}
    assert not [file for file, text in texts.items() if 'class="arithmatex"' in text]
    assert "<mfrac>" in texts[Path("reference/index.html")]


def test_a_formula_with_an_unknown_command_stops_the_build():
    from mkdocs.exceptions import PluginError

    typeset = runpy.run_path(str(ROOT / "docs" / "formulas.py"))["on_page_content"]
    page = SimpleNamespace(file=SimpleNamespace(src_uri="frames.md"))
    formula = typeset(r'<span class="arithmatex">\(a &lt; \frac{1}{2}\)</span>', page=page)
    assert all(part in formula for part in ("<math>", "<mfrac>", "&lt;"))
    with pytest.raises(PluginError, match=r"frames\.md.*tfrc"):
        typeset(r'<div class="arithmatex">\[\tfrc{1}{2}\]</div>', page=page)


def test_the_examples_of_experiments_run():
    module = import_module("guided_collapse.experiments")
    for public in (getattr(module, name) for name in module.__all__):
        if ">>>" in (public.__doc__ or ""):
            check_examples(public)


def test_every_page_opens_without_an_error_and_asks_nobody_else(site, address, tmp_path):
    with Browser(tmp_path / "profile") as browser:
        browser.requests()  # forgets those of the empty first tab
        for file in pages(site):
            browser.ask("POST", "/url", {"url": address + str(file.relative_to(site))})
            browser.wait("document.readyState === 'complete'")
            assert browser.run("return document.querySelector('article h1').textContent.length") > 3
            assert browser.log_of("browser") == [], file
        asked = browser.requests()
    # The browser's own first page asks for pages of its own, chrome://... and chrome-untrusted://...
    fetched = [request for request in asked if not request.startswith(("chrome", "data:"))]
    assert len(fetched) > 20
    assert not [request for request in fetched if not request.startswith(address)]
