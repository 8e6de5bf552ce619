"""What `import embodied` and the command line load."""

from __future__ import annotations

import subprocess
import sys

HEAVY = ("mujoco", "grpc", "lerobot", "transformers", "diffusers", "hydra", "torch", "matplotlib", "zarr")


def loaded_after(code: str) -> set[str]:
    """Heavy packages that a fresh interpreter has loaded after `code`."""
    script = f"{code}\nimport sys; print('LOADED', *(m for m in {HEAVY} if m in sys.modules))"
    output = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    return set(output.splitlines()[-1].split()[1:])


def test_import_loads_nothing_heavy() -> None:
    assert loaded_after("import embodied") == set()


def test_help_loads_nothing_heavy() -> None:
    assert loaded_after("from embodied.cli.main import main; main(['--help'])") == set()


def test_the_core_loads_no_simulator_robot_or_model_library() -> None:
    assert loaded_after("from embodied import agent, checkpoint, flow, learner, metrics, tree") == {"torch"}


def test_the_wait_policy_is_set_before_torch_is_loaded() -> None:
    code = (
        "import os, sys; os.environ.pop('OMP_WAIT_POLICY', None)\n"
        "from embodied.cli.main import main; main(['--version'])\n"
        "assert os.environ['OMP_WAIT_POLICY'] == 'PASSIVE' and 'torch' not in sys.modules"
    )
    loaded_after(code)


def test_a_wait_policy_of_the_user_stands() -> None:
    code = (
        "import os; os.environ['OMP_WAIT_POLICY'] = 'ACTIVE'\n"
        "from embodied.cli.main import main; main(['--version'])\n"
        "assert os.environ['OMP_WAIT_POLICY'] == 'ACTIVE'"
    )
    loaded_after(code)
