"""`embodied data info · verify · repair · import · export`: look at, check, repair and convert stores."""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from ..data import report
from ..data.episodes import DamageError
from ..data.interop import lerobot, replay_buffer, robomimic
from ..data.interop.fields import Fields
from ..data.store import Store
from ..types import Episode

KINDS = ("lerobot", "replay-buffer", "robomimic")


def main(arguments: Sequence[str]) -> int:
    """Run one subcommand; 0 if all is well, 1 if damage was found."""
    chosen = _parser().parse_args(list(arguments))
    return chosen.run(chosen)


def info(chosen: argparse.Namespace) -> int:
    """Describe a store."""
    with Store.open(chosen.path) as store:
        facts = report.describe(store)
    if chosen.json:
        print(json.dumps(facts))
        return 0
    for name, value in facts.items():
        if name in ("state", "action"):
            print(f"{name:<12} {'dim':<24} {'min':>10} {'max':>10} {'mean':>10} {'std':>10}")
            for dim, numbers in value.items():
                print(f"{'':<12} {dim:<24} " + " ".join(f"{number:>10.4g}" for number in numbers))
        elif name == "odd":
            print("\n".join(f"{'look at':<12} {line}" for line in value) or f"{'look at':<12} nothing odd")
        elif isinstance(value, dict):
            print(f"{name:<12} " + ", ".join(f"{key} {number}" for key, number in value.items()))
        else:
            print(f"{name:<12} {', '.join(map(str, value)) if isinstance(value, list) else value}")
    return 0


def verify(chosen: argparse.Namespace) -> int:
    """Check every hash; a store whose writer died is completed first."""
    damage: list[str] = []
    try:
        store = Store.open(chosen.path, write=True)
    except (RuntimeError, PermissionError):  # a writer is at work, or the disk is read-only: look from outside
        store = Store.open(chosen.path)
    else:
        damage += _say_recovery(store)
    with store:
        damage += report.verify(store)
        count = len(store)
    aside = sorted(path.stem for path in (Path(chosen.path) / "quarantine").glob("*.json"))
    if aside:
        print(f"in quarantine: {', '.join(aside)}")
    for line in damage:
        print(f"damaged: {line}")
    print(f"{count} episodes, {len(damage)} damaged" + (f"; 'embodied data repair {chosen.path}' sets them aside" if damage else ""))
    return 1 if damage else 0


def repair(chosen: argparse.Namespace) -> int:
    """Complete what a crash left, rebuild the index if need be, and set damaged episodes aside."""
    with Store.open(chosen.path, write=True) as store:
        _say_recovery(store)
        broken = {}
        for id in tqdm(store.ids, desc="checking", disable=None):
            try:
                store.check(id)
            except DamageError as error:
                broken[id] = str(error)
        store.quarantine(broken)
        for id, why in store.recovery.quarantined.items():
            print(f"set aside: {id} ({why})")
        print(f"{len(store)} episodes are sound, {len(store.recovery.quarantined)} things were set aside in {chosen.path}/quarantine")
    return 0


def _say_recovery(store: Store) -> list[str]:
    found = store.recovery
    for what, ids in (("completed", found.committed), ("cut short by a crash, kept", found.crashed), ("adopted", found.adopted)):
        if ids:
            print(f"{what}: {len(ids)} episodes ({', '.join(ids)})")
    return found.damage


def import_(chosen: argparse.Namespace) -> int:
    """Copy foreign data into a new store."""
    source = open_foreign(chosen.kind or _guess(Path(chosen.source)), chosen.source, _fields(chosen), mask=chosen.mask)
    path = Path(chosen.path)
    if path.exists():
        raise ValueError(f"{path} exists. Name a new folder.")
    partial = path.with_name(path.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        with Store.create(partial, source.spec) as store:
            for episode in tqdm(source, total=len(source), desc="importing", disable=None):
                store.append(episode, stratum="demo")
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    partial.rename(path)
    with Store.open(path) as store:
        frames = sum(row.length for row in store.rows)
        print(f"{len(store)} episodes, {frames} frames; success {sum(row.success for row in store.rows)} of {len(store)}")
    print(f"'embodied data info {chosen.path}' shows ranges and what looks odd")
    return 0


def export(chosen: argparse.Namespace) -> int:
    """Copy a store into a foreign format."""
    target = Path(chosen.target)
    if target.exists():
        raise ValueError(f"{target} exists. Name a new one.")
    with Store.open(chosen.path) as store:
        if not len(store):
            raise ValueError(f"{chosen.path} holds 0 episodes. There is nothing to export.")
        episodes: Iterable[Episode] = tqdm(store, total=len(store), desc="exporting", disable=None)
        if chosen.kind == "lerobot":
            count = lerobot.write(target, store.spec, episodes, videos=chosen.videos)
        else:
            count = replay_buffer.write(target, list(episodes))
    print(f"{count} episodes in {target}")
    return 0


def open_foreign(kind: str, path: str, fields: Fields, *, mask: str | None = None) -> Any:
    """Open foreign data: a `spec`, and episodes by iteration."""
    if kind == "lerobot":
        return lerobot.Dataset(path, fields)
    return replay_buffer.ReplayBuffer(path, fields) if kind == "replay-buffer" else robomimic.Demos(path, fields, mask=mask)


def _guess(path: Path) -> str:
    if not path.exists():
        raise ValueError(f"{path} does not exist.")
    if (path / "meta" / "info.json").is_file():
        return "lerobot"
    if path.suffix in (".hdf5", ".h5"):
        return "robomimic"
    if path.suffix == ".zip" or (path / "meta" / "episode_ends").exists():
        return "replay-buffer"
    raise ValueError(f"{path} is of no format known here. Say --kind {'|'.join(KINDS)}.")


def _fields(chosen: argparse.Namespace) -> Fields:
    return Fields(
        state=tuple(chosen.state.split(",")) if chosen.state else (),
        action=chosen.action,
        cameras=dict(chosen.camera),
        units=chosen.units,
        gripper=chosen.gripper,
        pictures=chosen.pictures,
        picture_top=chosen.picture_top,
        success=not chosen.failures,
        missing_is_zero=chosen.missing_is_zero,
        hz=chosen.hz,
        robot=chosen.robot,
        task=chosen.task,
    )


def _pair(text: str) -> tuple[str, str]:
    name, equals, column = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"'{text}' is not NAME=COLUMN")
    return name, column


def _range(text: str) -> tuple[float, float]:
    closed, opened = (float(number) for number in text.split(","))
    return closed, opened


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="embodied data", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, run, text in (("info", info, "describe"), ("verify", verify, "check every hash"), ("repair", repair, "make sound")):
        command = commands.add_parser(name, help=text, description=run.__doc__)
        command.add_argument("path", help="folder of the store")
        command.set_defaults(run=run)
        if name == "info":
            command.add_argument("--json", action="store_true", help="print one JSON object")
    command = commands.add_parser("export", help="to a foreign format", description=export.__doc__)
    command.add_argument("path", help="folder of the store")
    command.add_argument("target", help="what to write")
    command.add_argument("--kind", choices=KINDS[:2], default="lerobot")
    command.add_argument("--videos", action="store_true", help="encode pictures as videos, which loses a little")
    command.set_defaults(run=export)
    _import_flags(commands.add_parser("import", help="from a foreign format", description=import_.__doc__))
    return parser


def _import_flags(command: argparse.ArgumentParser) -> None:
    command.add_argument("source", help="foreign data set")
    command.add_argument("path", help="folder of the new store")
    command.add_argument("--kind", choices=KINDS)
    command.add_argument("--state", default="", help="COLUMN,COLUMN that make the state")
    command.add_argument("--action", default="", help="column of the action")
    command.add_argument("--camera", type=_pair, action="append", default=[], help="NAME=COLUMN, once per camera")
    command.add_argument("--units", choices=("rad", "deg", "as-is"))
    command.add_argument("--gripper", type=_range, help="CLOSED,OPEN: its foreign numbers")
    command.add_argument("--pictures", choices=("hwc", "chw"), help="order of axes")
    command.add_argument("--picture-top", type=int, choices=(1, 255), help="brightest value of pictures that are not uint8")
    command.add_argument("--failures", action="store_true", help="episodes that do not say so have failed")
    command.add_argument("--missing-is-zero", action="store_true", help="zarr chunks that are not there were zeros")
    command.add_argument("--hz", type=float, help="frames per second")
    command.add_argument("--robot", default="unknown")
    command.add_argument("--task", default="demonstrations")
    command.add_argument("--mask", help="subset of a robomimic file")
    command.set_defaults(run=import_)
