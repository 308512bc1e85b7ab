# make train [ARGS="mixer=random data=cifar10"]   make test
PYTHON ?= python3
ARGS ?= mixer=dense pool=softmax_plus_x data=digits epochs=30

.PHONY: train test
train: .venv/installed
	.venv/bin/python train.py $(ARGS)

test: .venv/installed
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/pyright
	.venv/bin/python -m pytest

# pyproject.toml and constraints.txt say what is installed, so only a change of theirs installs again
.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	.venv/bin/python -m pip install --disable-pip-version-check -c constraints.txt -e .[dev]
	touch $@
