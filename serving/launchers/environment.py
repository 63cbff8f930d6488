"""Which variables an engine inherits; pure.

An engine downloads models and runs other people's code: it gets what it needs to find its Python,
its caches and its GPUs, and none of the controller's secrets.
"""

from __future__ import annotations

from collections.abc import Mapping

TOKEN_VARIABLE = "SERINUS_ENGINE_TOKEN"

_NAMES = frozenset(
    {
        "HOME",
        "LANG",
        "LD_LIBRARY_PATH",
        "LOGNAME",
        "PATH",
        "PYTHONPATH",
        "SERINUS_SIMULATOR_FAULT",
        "SSL_CERT_FILE",
        "TMPDIR",
        "TZ",
        "USER",
        "VIRTUAL_ENV",
        "XDG_CACHE_HOME",
    }
)
_PREFIXES = ("CUDA_", "HF_", "HIP_", "LC_", "NCCL_", "ROCR_", "TORCH", "TRITON_", "VLLM_")
_SECRET_ENDINGS = ("_KEY", "_PASSWORD", "_SECRET", "_TOKEN")


def engine_environment(
    parent: Mapping[str, str],
    config: Mapping[str, str],
    *,
    gpu_ids: tuple[str, ...],
    token: str,
) -> dict[str, str]:
    """The whole environment of an engine: allowed ones of ``parent``, over them the config's own,
    the slot's GPUs (where it names any), and the token by which the engine is found again."""
    inherited = {name: value for name, value in parent.items() if _allowed(name)}
    gpus = {"CUDA_VISIBLE_DEVICES": ",".join(gpu_ids)} if gpu_ids else {}
    # Unbuffered, so that the last words of an engine that is killed reach its log. SPT_NOENV, since
    # vLLM sets its process titles and that overwrites what others can read of its environment.
    ours = {"PYTHONUNBUFFERED": "1", "SPT_NOENV": "1", TOKEN_VARIABLE: token}
    return {**inherited, **config, **gpus, **ours}


def _allowed(name: str) -> bool:
    if name in _NAMES:
        return True
    return name.startswith(_PREFIXES) and not name.endswith(_SECRET_ENDINGS)
