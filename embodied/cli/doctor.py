"""`embodied doctor`: what works on this machine, and what to do about what does not."""

from __future__ import annotations

import glob
import importlib.metadata
import json
import os
import platform
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from .errors import UsageError

SOFTWARE = ("llvmpipe", "softpipe", "swrast", "swiftshader")
"""Names of rasterisers that draw on the CPU: some 400 times slower than a GPU for a 256² picture."""
PROBE_S = 40


@dataclass(frozen=True)
class Finding:
    """The state of one thing."""

    name: str
    status: Literal["ok", "note", "fault"]
    """`note`: something optional is absent or slow; `fault`: the project does not work."""
    text: str
    facts: dict[str, Any] = field(default_factory=dict)


def main(arguments: Sequence[str]) -> int:
    """Print the findings; exit code 1 if there is a fault."""
    if any(word in ("-h", "--help") for word in arguments):
        print("usage: embodied doctor [--json]")
        return 0
    unknown = [word for word in arguments if word != "--json"]
    if unknown:
        raise UsageError(f"doctor takes --json only, got {' '.join(unknown)}.")
    findings = examine()
    for finding in findings if not arguments else []:
        mark = {"ok": "ok   ", "note": "note ", "fault": "FAULT"}[finding.status]
        print(f"{mark}  {finding.name:<8} {finding.text}")
    if arguments:
        print(json.dumps({finding.name: asdict(finding) for finding in findings}))
    return 1 if any(finding.status == "fault" for finding in findings) else 0


def examine() -> list[Finding]:
    """Make every check; those that need a process of their own run side by side, except the timing."""
    with ThreadPoolExecutor() as pool:
        drawing = pool.submit(gl)
        quick = [check() for check in (python, packages, cores, gpu, serial, network, disk)]
        return [*quick, drawing.result(), waiting()]


def python() -> Finding:
    """Python's version and place."""
    version = platform.python_version()
    status: Literal["ok", "fault"] = "ok" if sys.version_info >= (3, 12) else "fault"
    return Finding(
        "python", status, f"{version} in {sys.prefix} on {platform.system()} {platform.machine()}", {"version": version}
    )


def packages() -> Finding:
    """The libraries that everything stands on."""
    names = ("torch", "mujoco", "gymnasium", "zarr", "lerobot", "hydra-core", "grpcio")
    found: dict[str, str | None] = {}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    absent = [name for name, version in found.items() if version is None]
    if absent:
        return Finding("packages", "fault", f"missing: {', '.join(absent)}. Run make setup.", found)
    return Finding("packages", "ok", ", ".join(f"{name} {version}" for name, version in found.items()), found)


def cores() -> Finding:
    """Processor cores that this process may use, and torch's threads."""
    import torch

    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = torch.get_num_threads()
    return Finding(
        "cpu", "ok", f"{usable} cores, torch uses {threads} threads", {"cores": usable, "torch_threads": threads}
    )


def gpu() -> Finding:
    """CUDA devices that torch sees."""
    import torch

    if not torch.cuda.is_available():
        return Finding("gpu", "note", "torch sees no CUDA device; everything runs on the CPU", {"devices": []})
    devices = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    facts = {"devices": [{"name": d.name, "memory_gb": round(d.total_memory / 2**30, 1)} for d in devices]}
    text = ", ".join(f"{d['name']} ({d['memory_gb']} GB)" for d in facts["devices"])
    return Finding("gpu", "ok", text, facts)


GL_PROBE = """
import mujoco
model = mujoco.MjModel.from_xml_string("<mujoco><worldbody><geom size='1'/></worldbody></mujoco>")
renderer = mujoco.Renderer(model, 32, 32)
data = mujoco.MjData(model)
mujoco.mj_forward(model, data)
renderer.update_scene(data)
assert renderer.render().any()
from OpenGL import GL
print("RENDERER", GL.glGetString(GL.GL_RENDERER).decode())
"""


def gl() -> Finding:
    """Off-screen drawing by each back-end, in a process of its own: a bad driver hangs or kills it, not us."""
    order = [os.environ["MUJOCO_GL"]] if os.environ.get("MUJOCO_GL") else ["egl", "osmesa"]
    with ThreadPoolExecutor() as pool:
        found = dict(zip(order, pool.map(_draw, order), strict=True))
    working = {name: result for name, (works, result) in found.items() if works}
    facts: dict[str, Any] = {"backends": {name: {"works": works, "detail": result} for name, (works, result) in found.items()}}
    if not working:
        reasons = "; ".join(f"{name}: {result}" for name, (_, result) in found.items())
        return Finding(
            "gl",
            "note",
            f"no off-screen OpenGL ({reasons}). Only the renderer needs it; MUJOCO_GL chooses a back-end.",
            facts,
        )
    name, renderer = next(iter(working.items()))
    facts["software"] = any(part in renderer.lower() for part in SOFTWARE)
    if facts["software"]:
        return Finding(
            "gl", "note", f"{name} draws on the CPU ({renderer}): slow. A GPU driver with EGL is faster.", facts
        )
    return Finding("gl", "ok", f"{name} draws on {renderer}", facts)


def _draw(backend: str) -> tuple[bool, str]:
    """Whether a back-end draws, and the renderer's name or the reason."""
    try:
        done = _python(GL_PROBE, MUJOCO_GL=backend)
    except subprocess.TimeoutExpired:
        return False, f"stuck, stopped after {PROBE_S} s"
    if done.returncode == 0:
        return True, done.stdout.partition("RENDERER ")[2].strip()
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    return False, lines[-1][:120] if lines else f"ended with code {done.returncode}"


def serial() -> Finding:
    """Serial ports, where motor buses appear."""
    ports = sorted(p for pattern in ("/dev/ttyACM*", "/dev/ttyUSB*", "/dev/cu.usb*") for p in glob.glob(pattern))
    closed = [port for port in ports if not os.access(port, os.R_OK | os.W_OK)]
    facts = {"ports": ports, "no_permission": closed}
    if closed:
        return Finding(
            "serial",
            "note",
            f"no permission for {', '.join(closed)}; join the group that owns them (often dialout)",
            facts,
        )
    return Finding(
        "serial", "ok" if ports else "note", ", ".join(ports) or "no serial port; no robot is attached", facts
    )


def network() -> Finding:
    """Whether a server can listen, on this machine alone and for others."""
    faults = {}
    for label, host in (("loopback", "127.0.0.1"), ("all interfaces", "0.0.0.0")):
        with socket.socket() as server:
            try:
                server.bind((host, 0))
                server.listen()
            except OSError as error:
                faults[label] = str(error)
    if faults:
        return Finding("network", "fault", f"cannot listen: {faults}", {"faults": faults})
    return Finding("network", "ok", "ports can be opened on loopback and on all interfaces", {"faults": {}})


def disk() -> Finding:
    """Room where runs are written."""
    free = shutil.disk_usage(".").free / 2**30
    writable = os.access(".", os.W_OK)
    facts = {"free_gb": round(free, 1), "writable": writable}
    if not writable:
        return Finding("disk", "fault", f"{os.getcwd()} cannot be written; runs/ is made there", facts)
    return Finding("disk", "ok" if free > 5 else "note", f"{free:.0f} GB free in {os.getcwd()}", facts)


WAITING_PROBE = """
import hashlib, statistics, threading, time
import torch
net = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.SiLU(), torch.nn.Linear(512, 512), torch.nn.SiLU())
x, stop = torch.randn(256, 64), threading.Event()
block = bytes(1 << 20)
def busy():  # like a physics pool: native work with the interpreter lock released
    while not stop.is_set():
        hashlib.sha256(block).digest()
pool = [threading.Thread(target=busy) for _ in range(torch.get_num_threads())]
[t.start() for t in pool]
times = []
end = time.perf_counter() + 1.0
with torch.no_grad():
    while time.perf_counter() < end:
        began = time.perf_counter()
        net(x)
        times.append(time.perf_counter() - began)
        time.sleep(0.005)
stop.set()
[t.join() for t in pool]
print("MS", 1e3 * statistics.median(times[5:]))
"""


def waiting() -> Finding:
    """What OMP_WAIT_POLICY does to a small forward pass beside a busy thread pool; measured, one policy after the other."""
    measured: dict[str, float] = {}
    for policy in ("PASSIVE", "ACTIVE"):
        try:
            done = _python(WAITING_PROBE, OMP_WAIT_POLICY=policy)
            measured[policy] = round(float(done.stdout.partition("MS ")[2]), 2)
        except (subprocess.TimeoutExpired, ValueError):
            return Finding("omp", "note", f"a forward pass with OMP_WAIT_POLICY={policy} could not be timed", measured)
    now = os.environ.get("OMP_WAIT_POLICY", "unset")
    text = f"a forward pass beside busy threads: {measured['PASSIVE']} ms passive, {measured['ACTIVE']} ms active; now {now}"
    slow = now != "PASSIVE" and measured["ACTIVE"] > 1.5 * measured["PASSIVE"]
    facts = {"passive_ms": measured["PASSIVE"], "active_ms": measured["ACTIVE"], "now": now}
    return Finding("omp", "note" if slow else "ok", text + ("; unset it" if slow else ""), facts)


def _python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=PROBE_S)
