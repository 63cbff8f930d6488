"""What an engine runs on: the facts that decide vLLM's defaults and which knobs make sense.

``ask`` is the only effect: it starts ``nvidia-smi``. Nothing here knows a model or a knob.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from domain.errors import BadInput

_QUERY = ("--query-gpu=memory.total,name", "--format=csv,noheader,nounits")
_TIMEOUT_S = 30.0


class HardwareClass(Enum):
    """The classes by which vLLM chooses its defaults; GPUs by their memory from which it holds."""

    CPU = "cpu"
    GPU = "gpu"
    GPU_70_GIB = "gpu_70_gib"
    GPU_160_GIB = "gpu_160_gib"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """What one lane's engine has: its class, its GPUs, and the numbers of its cores, rising, where
    there is no GPU."""

    kind: HardwareClass
    gpus: int = 1
    cores: tuple[int, ...] = (0,)

    @property
    def all_cores(self) -> str:
        """The cores as a list of ranges, for example ``0-3,8``."""
        first = [core for core in self.cores if core - 1 not in self.cores]
        last = [core for core in self.cores if core + 1 not in self.cores]
        ranges = zip(first, last, strict=True)
        return ",".join(f"{low}-{high}" if low < high else f"{low}" for low, high in ranges)


def cpu() -> Hardware:
    """This machine without a GPU; its cores are those that this process may use."""
    cores = tuple(sorted(os.sched_getaffinity(0)))
    return Hardware(kind=HardwareClass.CPU, gpus=0, cores=cores)


def gpu(memory_gib: float, gpus: int, name: str = "") -> Hardware:
    """A lane of ``gpus`` GPUs, each of ``memory_gib`` GiB; vLLM treats an A100 as a smaller one
    than it is, by its name."""
    kind = HardwareClass.GPU
    if memory_gib >= 160:
        kind = HardwareClass.GPU_160_GIB
    elif memory_gib >= 70 and "a100" not in name.lower():
        kind = HardwareClass.GPU_70_GIB
    return Hardware(kind=kind, gpus=gpus)


def ask(gpu_ids: Sequence[str]) -> Hardware:
    """The lane of the named GPUs as ``nvidia-smi`` tells; BadInput where it cannot."""
    command = shutil.which("nvidia-smi")
    if command is None:
        raise BadInput("nvidia-smi is not installed; set gpu_memory_gib to one GPU's memory.")
    try:
        answer = subprocess.run(
            [command, *_QUERY, f"--id={','.join(gpu_ids)}"],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=True,
        ).stdout
        rows = [line.partition(",") for line in answer.splitlines() if line.strip()]
        mib, name = min((float(mib), name) for mib, _, name in rows)
    except (OSError, subprocess.SubprocessError, ValueError):
        raise BadInput(
            f"nvidia-smi does not tell the memory of GPU {', '.join(gpu_ids)}; check its id, or "
            "set gpu_memory_gib."
        ) from None
    return gpu(mib / 1024, len(gpu_ids), name)
