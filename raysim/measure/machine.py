"""What this machine is: CPU, memory, GPUs, disk, and the versions of what runs on it.

Nothing here names the machine (no host name, no paths), so that a description can be published.
"""

from __future__ import annotations

import csv
import os
import platform
import re
import shutil
import subprocess
import time
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

MIB = 2**20
PACKAGES = ("ray", "torch", "deepspeed")
_NOT_A_NAME = re.compile(
    r"\((r|tm|c)\)|@.*|\bprocessor\b|\bcpu\b|\bwith\b.*|\b\d+-core\b", re.IGNORECASE
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU as ``nvidia-smi`` names it."""

    name: str
    memory_bytes: int
    driver: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Hardware and versions; ``versions`` holds None for what is not installed."""

    cpu: str
    cores: int
    """That this process may use."""
    memory_bytes: int
    """Of the host, or of the container where that is less."""
    gpus: tuple[Gpu, ...]
    disk: str
    """Kind and file system of the folder described, such as ``nvme, ext4``."""
    kernel: str
    versions: dict[str, str | None]

    def as_dict(self) -> dict[str, Any]:
        """Plain values for ``meta.yaml``: ``{hardware, versions}``."""
        hardware = asdict(self)
        versions = hardware.pop("versions")
        return {"hardware": hardware | {"gpus": list(hardware["gpus"])}, "versions": versions}


def describe(folder: Path | None = None) -> Machine:
    """What this machine is; ``folder`` says which disk is meant (the working folder by default)."""
    gpus = _gpus()
    return Machine(
        cpu=_cpu(),
        cores=len(os.sched_getaffinity(0)),
        memory_bytes=_memory_bytes(),
        gpus=gpus,
        disk=_disk(folder or Path.cwd()),
        kernel=f"{platform.system()} {platform.release().partition('-')[0]}",
        versions={"python": platform.python_version()}
        | {package: installed(package) for package in PACKAGES}
        | (_cuda_versions() if gpus else {"cuda": None, "nccl": None}),
    )


def slug(machine: Machine) -> str:
    """Folder name of such machines: ``amd-epyc-2core``, ``nvidia-h100-80gb-hbm3-8gpu``."""
    if machine.gpus:
        return f"{_words(machine.gpus[0].name)}-{len(machine.gpus)}gpu"
    return f"{_words(machine.cpu)}-{machine.cores}core"


def busy_share(seconds: float = 0.5) -> float:
    """Share of all CPU time that something used in the next ``seconds``; 0 where nobody says."""
    before = _cpu_ticks()
    time.sleep(seconds)
    passed = [after - start for after, start in zip(_cpu_ticks(), before, strict=True)]
    return 1 - sum(passed[3:5]) / sum(passed) if sum(passed) > 0 else 0.0


def stolen_s() -> float:
    """CPU seconds that the hypervisor has given to others since this machine started."""
    return _cpu_ticks()[7] / os.sysconf("SC_CLK_TCK")


class Disturbance:
    """What this process and its children did not use of the CPUs since it was made."""

    def __init__(self) -> None:
        self._start = (time.monotonic(), self._used_by_others_s(), stolen_s())

    @staticmethod
    def _used_by_others_s() -> float:
        ticks = _cpu_ticks()
        used = (sum(ticks[:3]) + sum(ticks[5:7])) / os.sysconf("SC_CLK_TCK")
        t = os.times()
        return used - (t.user + t.system + t.children_user + t.children_system)

    def cores(self) -> dict[str, float]:
        """Cores that other processes kept busy, and that the hypervisor took, on average."""
        wall_s, others_s, taken_s = self._start
        passed_s = max(time.monotonic() - wall_s, 1e-9)
        return {
            "others": max(0.0, (self._used_by_others_s() - others_s) / passed_s),
            "stolen": max(0.0, (stolen_s() - taken_s) / passed_s),
        }


def installed(package: str) -> str | None:
    """Version of an installed package, without importing it; None if there is none."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _words(name: str) -> str:
    return "-".join(re.findall(r"[a-z0-9.]+", _NOT_A_NAME.sub(" ", name.lower()))) or "unknown"


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError:
        return ""


def _cpu_ticks() -> list[int]:
    """user, nice, system, idle, iowait, irq, softirq, steal of all CPUs since the start."""
    ticks = [int(word) for word in _read("/proc/stat").partition("\n")[0].split()[1:9]]
    return ticks or [0] * 8


def _cpu() -> str:
    for line in _read("/proc/cpuinfo").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return platform.processor() or platform.machine()


def _memory_bytes() -> int:
    host = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = _read("/sys/fs/cgroup/memory.max").strip()
    return min(host, int(limit)) if limit.isdigit() else host


def _gpus() -> tuple[Gpu, ...]:
    program = shutil.which("nvidia-smi")
    if program is None:
        return ()
    fields = "--query-gpu=name,memory.total,driver_version"
    done = subprocess.run(  # noqa: S603  (a fixed command, its path just looked up)
        [program, fields, "--format=csv,noheader,nounits"],
        check=False, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    if done.returncode:
        return ()
    rows = csv.reader(done.stdout.splitlines(), skipinitialspace=True)
    return tuple(
        Gpu(name=name, memory_bytes=int(mib) * MIB, driver=driver) for name, mib, driver in rows
    )


def _cuda_versions() -> dict[str, str | None]:
    if installed("torch") is None:
        return {"cuda": None, "nccl": None}
    import torch

    nccl: Any = torch.cuda.nccl.version if torch.cuda.is_available() else lambda: ()  # untyped
    return {"cuda": torch.version.cuda, "nccl": ".".join(map(str, nccl())) or None}


def _disk(folder: Path) -> str:
    """From the longest mount point above ``folder``, and from what sysfs says of its device."""
    folder = folder.resolve()
    mounts = [line.split() for line in _read("/proc/mounts").splitlines()]
    above = [m for m in mounts if folder.is_relative_to(m[1])]
    if not above:
        return "unknown"
    device, _, filesystem, *_ = max(above, key=lambda mount: len(mount[1]))
    name = re.sub(r"p?\d+$", "", device.removeprefix("/dev/"))
    rotational = _read(f"/sys/block/{name}/queue/rotational").strip()
    if name.startswith("nvme"):
        kind = "nvme"
    elif name.startswith("vd"):
        kind = "virtio"
    else:
        kind = {"0": "ssd", "1": "hdd"}.get(rotational, "unknown device")
    return f"{kind}, {filesystem}"
