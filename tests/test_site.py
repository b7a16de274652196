"""The documentation site: it builds without a warning, has every public name, and every page works with nothing from elsewhere."""

import functools
import inspect
import os
import re
import subprocess
import sys
import threading
from html import unescape
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from pathlib import Path
from urllib.parse import unquote, urldefrag, urljoin, urlparse

import pytest

from tests.experiments.report.browser import Browser
from tests.test_imports import PACKAGES, check_examples

pytestmark = [pytest.mark.documentation, pytest.mark.slow]

ROOT = Path(__file__).parent.parent


class Page(HTMLParser):
    """What a page refers to, and what it can be referred to by."""

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
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
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


def shown(text):
    """What a reader sees of text or a page, in one line."""
    return " ".join(unescape(re.sub(r"<[^>]+>", "", text)).replace("`", "").split())


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_is_explained_and_has_its_example(site, package):
    names = {name for page in pages(site).values() for name in page.names}
    text = shown("".join(file.read_text() for file in (site / "reference").rglob("*.html")))
    module = import_module(package)
    for name in module.__all__:
        assert f"{package}.{name}" in names, name
        if callable(getattr(module, name)):
            explained, _, example = inspect.getdoc(getattr(module, name)).partition("Example:")
            assert " ".join(explained.splitlines()[0].replace("`", "").split()) in text, name
            assert " ".join(example.split())[:60] in text, name


@pytest.mark.parametrize("package", PACKAGES)
def test_the_example_of_every_public_name_runs(package):
    module = import_module(package)
    for name in module.__all__:
        public = getattr(module, name)
        if callable(public):
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
    # The browser's own first page asks for pages of its own, chrome://...
    fetched = [request for request in asked if not request.startswith(("chrome:", "data:"))]
    assert len(fetched) > 20
    assert not [request for request in fetched if not request.startswith(address)]


def test_the_search_finds_a_name(address, tmp_path):
    with Browser(tmp_path / "profile") as browser:
        browser.ask("POST", "/url", {"url": f"{address}?q=StratifiedBatchSampler"})
        browser.run("document.querySelector('label[for=__search]').click()")
        browser.wait("[...document.querySelectorAll('.md-search-result__link')].some((a) => a.href.includes('reference'))")
        assert browser.log_of("browser") == []
