# `make demo` and `make test` are each enough on a fresh machine: environment, installation, run.
PYTHON ?= python3
VENV := .venv
INTEGRATIONS := .venv-integrations
LOWEST := .venv-lowest
APART := not documentation and not crash and not wheel and not integrations
TESTS := '$(APART) and not thorough'
ALL_TESTS := '$(APART)'
export UV_FIND_LINKS ?= $(PIP_FIND_LINKS)
export OMP_NUM_THREADS ?= 1
# Tests start many processes; compiled files save each of them seconds.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test thorough coverage crash documentation docs wheel integrations lowest results check clean help
.DEFAULT_GOAL := test

$(VENV)/installed: Makefile pyproject.toml constraints.txt
	@echo "Installing PyTorch and about 100 other packages into $(VENV), once."
	@echo "From PyPI that is a download of 3 GB on Linux, with CUDA, and of 0.3 GB on a Mac."
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet uv
	$(VENV)/bin/uv pip install --python $(VENV)/bin/python -c constraints.txt -e '.[experiments,hub,paper,onnx,tensorboard,dev]'
	touch $@

demo: $(VENV)/installed ## four heads, three seeds, on scikit-learn's digits: a table and a page to look at
	@echo "Training on handwritten digits, which takes a minute or two on two cores."
	$(VENV)/bin/guided-collapse compare digits --heads linear cosine fixed-etf nearest-etf --seeds 0 1 2 --trace

check: $(VENV)/installed ## style and types
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

test: check ## style, types and tests: under five minutes on two cores
	$(VENV)/bin/python -m pytest -m $(TESTS)

thorough: $(VENV)/installed ## the tests that `make test` leaves out: sweeps, large sizes, killed runs, the page in a browser
	$(VENV)/bin/python -m pytest -m 'thorough and not crash'

coverage: check ## all tests, with the files below 90 % coverage and the total
	$(VENV)/bin/python -m pytest -m $(ALL_TESTS) --cov=guided_collapse --cov-report=
	$(VENV)/bin/python -m coverage report | awk '/^(Name|TOTAL)/ || $$NF + 0 < 90'

crash: $(VENV)/installed ## runs killed at every file operation, resumed and compared
	$(VENV)/bin/python -m pytest -m crash

documentation: $(VENV)/installed ## every code block of docs/, with the packages that it needs, and the site
	$(VENV)/bin/uv pip install --quiet --python $(VENV)/bin/python -c constraints.txt -e '.[documentation,docs]'
	$(VENV)/bin/python -m pytest -m documentation

docs: $(VENV)/installed ## the documentation site, in site/; look at it with `.venv/bin/mkdocs serve`
	$(VENV)/bin/uv pip install --quiet --python $(VENV)/bin/python -c constraints.txt -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict

wheel: $(VENV)/installed ## sdist and wheel, checked, and tested in a fresh environment
	$(VENV)/bin/python -m pytest -m wheel -n 0

# The default build of torch, because torchvision and timm cannot be imported beside a CPU-only build.
$(INTEGRATIONS)/installed: Makefile pyproject.toml constraints-integrations.txt
	$(PYTHON) -m venv $(INTEGRATIONS)
	$(INTEGRATIONS)/bin/python -m pip install --quiet uv
	env -u PIP_FIND_LINKS -u UV_FIND_LINKS $(INTEGRATIONS)/bin/uv pip install --quiet --python $(INTEGRATIONS)/bin/python \
		-c constraints-integrations.txt -e '.[integrations,onnx,tensorboard,experiments,dev]'
	touch $@

integrations: $(INTEGRATIONS)/installed ## the heads in models and trainers of other libraries, in an environment of its own
	$(INTEGRATIONS)/bin/python -m pytest -m integrations --dist worksteal --timeout 600 tests/integrations

# The default build of torch again.
$(LOWEST)/installed: Makefile pyproject.toml
	$(PYTHON) -m venv $(LOWEST)
	$(LOWEST)/bin/python -m pip install --quiet uv
	env -u PIP_FIND_LINKS -u UV_FIND_LINKS $(LOWEST)/bin/uv pip install --quiet --python $(LOWEST)/bin/python \
		--resolution lowest-direct -e '.[experiments,paper,onnx,tensorboard,dev]'
	touch $@

lowest: $(LOWEST)/installed ## heads, metrics and exports with the oldest packages that pyproject.toml allows, in an environment of its own
	$(LOWEST)/bin/python -m pytest -m $(TESTS) -o filterwarnings=default \
		tests/geometry tests/heads tests/metrics tests/paper tests/experiments/test_export.py tests/test_imports.py tests/test_readme.py

results: $(VENV)/installed ## the report and the tables of measurements, from results/records
	$(VENV)/bin/python -m results.build

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "%-14s %s\n", $$1, $$2 }' Makefile

clean: ## removes the environments and caches
	rm -rf $(VENV) $(INTEGRATIONS) $(LOWEST) .pytest_cache .mypy_cache .ruff_cache .coverage dist site
