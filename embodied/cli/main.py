"""The `embodied` command: find the module of a subcommand, run it, turn mistakes into one message."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from importlib.metadata import version

from ..plugins import nearest
from .errors import UsageError

COMMANDS = {
    "train": "run an experiment: collect, supervised training, reinforcement learning, final evaluation",
    "collect": "record demonstrations or rollouts to a store",
    "sft": "supervised training from a store",
    "eval": "evaluate a checkpoint",
    "report": "rebuild a run's report.html",
    "data": "look at, check, repair and convert stores",
    "bench": "measure this machine",
    "doctor": "say what works here",
}
"""Command to its one-line description; command X lives in the module `embodied.cli.X`, as `main(arguments)`."""

DONE, FAILED, USAGE = 0, 1, 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code: 0 done, 1 failed or interrupted, 2 wrong usage."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    # Rollout threads and torch threads share cores; torch's OpenMP reads this when it is first imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        code = _run(words)
        sys.stdout.flush()
        return code
    except UsageError as mistake:
        print(f"embodied: {mistake}", file=sys.stderr)
        return USAGE
    except KeyboardInterrupt as interrupt:  # a sweep ends here, too: its other jobs do not start
        print(f"embodied: {str(interrupt) or 'interrupted'}", file=sys.stderr)
        return FAILED
    except BrokenPipeError:
        # The reader of a pipe left (`| head`); Python would complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except (ValueError, RuntimeError, OSError) as mistake:
        if os.environ.get("EMBODIED_TRACEBACK"):
            traceback.print_exc()
        print(f"embodied: {mistake}", file=sys.stderr)
        print("(EMBODIED_TRACEBACK=1 shows where)", file=sys.stderr)
        return FAILED


def _run(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        print(_help())
        return DONE if words else USAGE
    command, *arguments = words
    if command == "--version":
        print(version("embodied-rl"))
        return DONE
    if command not in COMMANDS:
        raise UsageError(f"No command '{command}'.{nearest(command, COMMANDS)} Commands: {', '.join(COMMANDS)}.")
    return importlib.import_module(f".{command}", __package__).main(arguments) or DONE


def _help() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {text}" for name, text in COMMANDS.items()]
    return "\n".join(
        [
            "usage: embodied COMMAND [key=value ...]",
            "",
            *lines,
            "",
            "`embodied COMMAND --help` lists a command's settings.",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
