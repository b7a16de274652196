import pytest

from tests.experiments.report.browser import Browser


@pytest.mark.parametrize("program", ["CHROMIUM", "DRIVER"])
@pytest.mark.parametrize(("required", "outcome"), [("", pytest.skip.Exception), ("1", pytest.fail.Exception)])
def test_a_missing_browser_skips_a_test_and_fails_it_where_one_is_required(program, required, outcome, tmp_path, monkeypatch):
    monkeypatch.setattr(f"tests.experiments.report.browser.{program}", None)
    monkeypatch.setenv("REQUIRE_BROWSER", required)
    with pytest.raises(outcome, match="needs chromium and chromedriver"), Browser(tmp_path):
        pass
