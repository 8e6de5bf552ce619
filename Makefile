# setup: an environment in .venv · demo: the main job · test: the tests · lock: renew the pins · check: style and types
.PHONY: setup demo test lock check

setup:
	@bash .ci/setup

demo: setup
	.venv/bin/embodied train experiment=demo run.name=demo overwrite=true

test: setup
	.venv/bin/python -m pytest -q

check: setup
	@bash .ci/check

# Exact pins of everything, every platform, no addresses.
lock:
	uv pip compile -q pyproject.toml --all-extras --universal --python-version 3.12 --upgrade \
	    --no-annotate --no-header --no-emit-index-url --no-emit-find-links -o requirements.txt
