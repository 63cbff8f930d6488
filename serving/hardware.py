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

_QUERY = ("--query-gpu=memory.total", "--format=csv,noheader,nounits")
_TIMEOUT_S = 30.0


class HardwareClass(Enum):
    """The classes by which vLLM chooses its defaults; GPUs by their memory from which it holds."""

    CPU = "cpu"
    GPU = "gpu"
    GPU_70_GIB = "gpu_70_gib"
    GPU_160_GIB = "gpu_160_gib"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """What one lane's engine has: its class, its GPUs, and the cores where there is none."""

    kind: HardwareClass
    gpus: int = 1
    cores: int = 1


def cpu() -> Hardware:
    """This machine without a GPU; its cores are those that this process may use."""
    return Hardware(kind=HardwareClass.CPU, gpus=0, cores=len(os.sched_getaffinity(0)))


def gpu(memory_gib: float, gpus: int) -> Hardware:
    """A lane of ``gpus`` GPUs, each of ``memory_gib`` GiB."""
    sizes = {160.0: HardwareClass.GPU_160_GIB, 70.0: HardwareClass.GPU_70_GIB}
    kind = next((kind for least, kind in sizes.items() if memory_gib >= least), HardwareClass.GPU)
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
        least_gib = min(float(line) for line in answer.split()) / 1024
    except (OSError, subprocess.SubprocessError, ValueError):
        raise BadInput(
            f"nvidia-smi does not tell the memory of GPU {', '.join(gpu_ids)}; check its id, or "
            "set gpu_memory_gib."
        ) from None
    return gpu(least_gib, len(gpu_ids))
