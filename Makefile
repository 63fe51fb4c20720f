# Each of these does all the set-up that it needs, and none that was done before (scripts/setup.py).
#
#   make demo     simulated devices of three vendors and a CPU train a real model together; then a training that loses ranks
#   make test     everything that .ci/run calls      make test-all   all of what it takes shares of, and what takes long
#   make build    .venv with the package in it
#   make wheel    dist/*.whl for every Python that is here, each tried in an environment that has nothing
#   make bench    the same work on Isthmus, Gloo and Open MPI
#   make docs     the site of docs/ in build/docs-site; a link that leads nowhere ends it
#   make lint     ruff, mypy, layering, clang-format        make tidy    clang-tidy (slow)
#   make format   clang-format and ruff's import order, in place
#   make clean    removes the build; make distclean also .venv
#
# PYTHON=python3.12 chooses the interpreter of .venv; TORCH_INDEX=<pip index> where torch comes from, if it is not pip's usual one.
# WHEELS="--python python3.12 --torch torch==2.13.0" are words for scripts/make_wheels.py.
# Of the tests: STAGES="unit python" chooses stages, ONLY="test_link:Link.Name" or ONLY=tests/python/test_work.py one test in a stage,
# WHOLE=1 everything, also where little differs from a green run; SHARE=<number or commit> the share of long products, PYTEST="-x" more words for pytest (scripts/test.py).

ifdef PYTHON
export CHOSEN_PYTHON := $(PYTHON)
else
PYTHON := $(firstword $(foreach p,python3 python3.13 python3.12 python3.11 python3.10,\
            $(shell $(p) -c 'import sys; sys.version_info >= (3, 10) and print("$(p)")' 2>/dev/null)))
endif
VENV := .venv/bin
export TORCH_INDEX
# A jobserver of this make has nothing to say to the builds that the scripts start.
unexport MAKEFLAGS MFLAGS

TESTS := --stages="$(STAGES)" --only="$(ONLY)" --share="$(SHARE)" --whole="$(WHOLE)" --pytest="$(PYTEST)"

.PHONY: build wheel demo test test-all bench docs lint tidy format clean distclean python

build: python
	@$(PYTHON) scripts/setup.py build

wheel: python
	@$(PYTHON) scripts/setup.py build
	@$(VENV)/python scripts/make_wheels.py $(WHEELS)

demo: python
	@$(PYTHON) scripts/setup.py demo
	@$(VENV)/python scripts/demo.py

test: python
	@$(PYTHON) scripts/setup.py test
	@$(VENV)/python scripts/test.py $(TESTS)

test-all: python
	@$(PYTHON) scripts/setup.py test-all
	@$(VENV)/python scripts/test.py --all $(TESTS)

bench: python
	@$(PYTHON) scripts/setup.py bench
	@$(VENV)/python bench/peers.py

docs: python
	@$(PYTHON) scripts/setup.py docs
	@NO_MKDOCS_2_WARNING=1 build/docs-venv/bin/python -m mkdocs build --quiet --strict --clean
	@echo "build/docs-site/index.html"

lint: python
	@$(PYTHON) scripts/setup.py lint
	@$(VENV)/python scripts/test.py --stages "layers ruff mypy clang-format" --verbose

tidy: python
	@$(PYTHON) scripts/setup.py test-all
	@$(VENV)/python scripts/test.py --stages "tidy" --verbose

format: python
	@$(PYTHON) scripts/setup.py lint
	@$(VENV)/python scripts/format.py --write

clean:
	rm -rf build compile_commands.json .pytest_cache .mypy_cache .ruff_cache .hypothesis dist

distclean: clean
	rm -rf .venv

python:
	@test -n "$(PYTHON)" || { echo "Isthmus needs Python 3.10 or newer. On Debian or Ubuntu: sudo apt-get install python3"; exit 1; }
