"""What a person may set, from a TOML file and the environment; the only reader of either.

Nothing here starts anything. Adapters get single values from here, never this object.
"""

from __future__ import annotations

import os
import re
import tomllib
import zoneinfo
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from domain.approval import Autonomy
from domain.engine import Value
from domain.errors import BadInput
from domain.load import Arrival
from domain.rollout import StallAction
from domain.slo import SLO
from domain.study import Objective

PREFIX = "SERINUS_"
_FOREIGN = {"SERINUS_SIMULATOR_FAULT", "SERINUS_ENGINE_TOKEN", "SERINUS_CONFIG"}
YEAR_S = 31_536_000.0
MOST_TIMES = 100
_OURS = {"--host", "--port", "--served-model-name", "--uds", "--config"}
Seconds = Annotated[float, Field(gt=0, le=YEAR_S, allow_inf_nan=False)]
Minutes = Annotated[float, Field(ge=0, le=YEAR_S / 60, allow_inf_nan=False)]
Port = Annotated[int, Field(ge=1, le=65_500)]


class Engine(BaseModel):
    """A further place where one engine can run."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    port: Port
    gpu_ids: tuple[str, ...] = ()


class Settings(BaseSettings):
    """All settings with their defaults; times are seconds, ports are on loopback."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="forbid", frozen=True)

    state_dir: Path = Path("serinus-state")
    database_url: SecretStr = SecretStr("")

    model: str = "demo-hybrid"
    served_model_name: str = ""
    executable: str = "simulator"
    engine_args: Annotated[tuple[str, ...], NoDecode] = ()
    drafters: dict[Literal["eagle3", "draft_model"], str] = {}
    gpus: Literal["separate", "none"] = "separate"
    gpu_memory_gib: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    production_gpu_ids: Annotated[tuple[str, ...], NoDecode] = ()
    canary_gpu_ids: Annotated[tuple[str, ...], NoDecode] = ()
    baseline: dict[str, Value] = {}

    launcher: Literal["process"] = "process"
    gateway: Literal["haproxy", "envoy"] = "haproxy"
    metrics: Literal["scrape", "prometheus", "grafana"] = "scrape"
    metric_labels: dict[str, str] = {}
    planner: Literal["rulebook", "model"] = "rulebook"

    gateway_port: Port = 8000
    api_port: Port = 8400
    production_port: Port = 8101
    canary_port: Port = 8201
    further_replicas: tuple[Engine, ...] = ()
    search_lanes: tuple[Engine, ...] = ()
    session_header: str = "x-session-id"
    gateway_log: bool = False
    haproxy_socket: Path | None = None

    prometheus_url: str = ""
    scrape_interval_s: Seconds = 2.0
    grafana_url: str = ""
    grafana_token: SecretStr = SecretStr("")
    grafana_datasource: str = ""
    webhook_url: SecretStr = SecretStr("")
    model_base_url: str = ""
    model_name: str = ""
    model_api_key: SecretStr = SecretStr("")
    model_api_key_file: Path | None = None
    model_timeout_s: Seconds = 60.0
    model_tokens_a_study: Annotated[int, Field(ge=0)] = 200_000
    model_tokens_a_day: Annotated[int, Field(ge=0)] = 1_000_000
    model_price_in: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    model_price_out: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    model_recording: Path | None = None
    api_tokens: dict[str, SecretStr] = {}
    api_hosts: Annotated[tuple[str, ...], NoDecode] = ()

    slo: str = "ttft<=1s, tpot<=60ms, share>=95%"
    objective: Objective = Objective.GOODPUT
    autonomy: Autonomy = Autonomy.APPROVE
    schedule: str = ""
    timezone: str = "UTC"
    cycle_s: Seconds = 1.0
    window_s: Seconds = 120.0
    min_requests: Annotated[int, Field(ge=8)] = 50
    drift_distance: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.6
    drift_windows: Annotated[int, Field(ge=1, le=100)] = 6
    studies_a_day: Annotated[int, Field(ge=1)] = 12
    canary_minutes_a_day: Minutes = 720.0
    changes_a_day: Annotated[int, Field(ge=1)] = 6
    cooldown_s: Annotated[float, Field(ge=0, le=YEAR_S)] = 1800.0

    trial_budget: Annotated[int, Field(ge=2, le=200)] = 12
    canary_minutes_a_study: Minutes = 360.0
    trial_warm_up_s: Seconds = 20.0
    trial_s: Seconds = 180.0
    screen_s: Seconds = 60.0
    confirm_rounds: Annotated[int, Field(ge=1, le=8)] = 3
    trial_requests: Annotated[int, Field(ge=0)] = 0
    trial_tokens: Annotated[int, Field(ge=0)] = 0
    request_timeout_s: Seconds = 120.0
    shards: Annotated[int, Field(ge=0, le=64)] = 0
    requests_log: Path | None = None
    arrivals: Arrival = Arrival.CLOSED
    load_levels: Annotated[tuple[float, ...], NoDecode] = (1.0,)
    corpus: Path | None = None
    trace: Path | None = None
    fidelity_limit: Literal["A", "B", "C", "D"] = "C"
    quality_questions: Annotated[int, Field(ge=0)] = 800
    engine_start_s: Seconds = 900.0
    drain_s: Seconds = 600.0
    stuck_s: Seconds = 60.0

    steps: Annotated[tuple[int, ...], NoDecode] = (5, 25, 50, 100)
    step_requests: Annotated[int, Field(ge=8)] = 50
    bake_s: Seconds = 300.0
    stall_s: Seconds = 3600.0
    stall_action: StallAction = StallAction.HOLD
    in_place: bool = False
    approval_ttl_s: Seconds = 86_400.0

    @field_validator(
        "steps",
        "load_levels",
        "engine_args",
        "production_gpu_ids",
        "canary_gpu_ids",
        "api_hosts",
        mode="before",
    )
    @classmethod
    def _listed(cls, value: object) -> object:
        """A list may also be written as text with commas, as an environment variable must."""
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        return value

    @field_validator("steps")
    @classmethod
    def _rising(cls, steps: tuple[int, ...]) -> tuple[int, ...]:
        if not steps or steps[-1] != 100 or steps[0] < 1 or list(steps) != sorted(set(steps)):
            raise ValueError("must rise from at least 1 and end at 100, like 5,25,50,100")
        return steps

    @field_validator("load_levels")
    @classmethod
    def _from_live(cls, levels: tuple[float, ...]) -> tuple[float, ...]:
        """The live load is what all else is held against, so it is always the first."""
        rising = list(levels) == sorted(set(levels))
        if levels[:1] != (1.0,) or not rising or not all(level <= MOST_TIMES for level in levels):
            raise ValueError(
                f"must begin at 1, the live load, and rise to {MOST_TIMES} at most, like 1,2,4"
            )
        return levels

    @field_validator("engine_args")
    @classmethod
    def _not_ours(cls, arguments: tuple[str, ...]) -> tuple[str, ...]:
        """Where an engine listens is not a matter of taste: it must stay on loopback."""
        for argument in arguments:
            flag = argument.split("=")[0]
            # A command line may take the beginning of a flag for the flag.
            if len(flag) > 2 and any(own.startswith(flag) for own in _OURS):
                raise ValueError(f"{flag} is given by Serinus itself; remove it")
        return arguments

    @field_validator("model", "executable")
    @classmethod
    def _at_home(cls, path: str) -> str:
        """``~`` is a shell's word; no engine would understand it."""
        return str(Path(path).expanduser()) if path.startswith("~") else path

    @field_validator("api_tokens")
    @classmethod
    def _told_apart(cls, tokens: dict[str, SecretStr]) -> dict[str, SecretStr]:
        """An empty token would let everybody in, and two alike would hide who acted."""
        given = [secret.get_secret_value().strip() for secret in tokens.values()]
        if not all(given) or not all(name.strip() for name in tokens):
            raise ValueError("no name and no token may be empty")
        if len(set(given)) < len(given):
            raise ValueError("each person needs a token of their own")
        return tokens

    @field_validator("prometheus_url", "grafana_url", "model_base_url")
    @classmethod
    def _addressed(cls, url: str) -> str:
        if url and not url.startswith(("http://", "https://")):
            raise ValueError("an address begins with http:// or https://")
        return url

    @field_validator("metric_labels")
    @classmethod
    def _label_names(cls, labels: dict[str, str]) -> dict[str, str]:
        """A name that is none would make every question wrong; the arm is asked for by Serinus."""
        for name in labels:
            if not re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_]*", name):
                raise ValueError(f"{name} is no label's name")
            if name in ("arm", "replica", "model_name"):
                raise ValueError(f"Serinus asks for {name} itself; remove it")
        return labels

    @field_validator("timezone")
    @classmethod
    def _zoned(cls, name: str) -> str:
        if name not in zoneinfo.available_timezones():
            raise ValueError("no such time zone is known; write it like Europe/Berlin")
        return name

    @field_validator("state_dir")
    @classmethod
    def _named(cls, folder: Path) -> Path:
        if folder == Path():
            raise ValueError("the state needs a folder of its own; name one")
        return folder

    @field_validator("requests_log")
    @classmethod
    def _foldered(cls, folder: Path | None) -> Path | None:
        if folder == Path():
            raise ValueError("name the folder that it is to be kept in, or leave it out")
        return folder

    @field_validator("haproxy_socket", mode="before")
    @classmethod
    def _unset(cls, path: object) -> object:
        """An empty text is no path."""
        return None if path == "" else path

    @field_validator("haproxy_socket")
    @classmethod
    def _of_unix(cls, path: Path | None) -> Path | None:
        if path is not None and not path.is_absolute():
            raise ValueError(
                "it is the absolute path of a Unix socket, like /run/haproxy/admin.sock; a host and"
                " a port will not do"
            )
        return path

    @field_validator("slo")
    @classmethod
    def _readable(cls, text: str) -> str:
        SLO.parse(text)
        return text

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The environment outranks the file, which arrives as keyword arguments."""
        return env_settings, init_settings

    @property
    def store_url(self) -> str:
        return (
            self.database_url.get_secret_value()
            or f"sqlite:///{(self.state_dir / 'serinus.db').absolute()}"
        )

    @property
    def hub_cache(self) -> Path:
        """Where models from the hub lie, by the hub client's own variables."""
        home = os.environ.get("HF_HOME", "~/.cache/huggingface")
        return Path(os.environ.get("HF_HUB_CACHE", f"{home}/hub")).expanduser()

    @property
    def ports(self) -> tuple[tuple[str, int], ...]:
        """All ports that are listened on, with the setting that each is from."""
        gateway = (
            ("gateway_port", self.gateway_port),
            ("gateway_port + 1 (the gateway's metrics)", self.gateway_port + 1),
        )
        return (
            *(() if self.haproxy_socket else gateway),
            ("api_port", self.api_port),
            ("production_port", self.production_port),
            *(("further_replicas", replica.port) for replica in self.further_replicas),
            ("canary_port", self.canary_port),
            *(("search_lanes", lane.port) for lane in self.search_lanes),
        )

    @property
    def simulated(self) -> bool:
        return self.executable == "simulator"


def load(path: Path | None = None, **overrides: Any) -> Settings:
    """Settings from the file, then the environment, then ``overrides``.

    Without ``path``, ``SERINUS_CONFIG`` and then ``serinus.toml`` in this folder are looked for.
    Raises BadInput with one sentence that names what is wrong and how to mend it.
    """
    values = _file(path)
    _refuse_unknown_variables()
    try:
        settings = Settings(**values)
        if overrides:
            settings = settings.model_copy(update=overrides)
    except ValidationError as error:
        raise BadInput(_sentence(error)) from None
    except SettingsError as error:
        raise BadInput(
            f"A variable of the environment cannot be read, tables are written as JSON: {error}."
        ) from None
    _check_together(settings)
    return settings


def _file(path: Path | None) -> dict[str, Any]:
    named = path or (Path(os.environ["SERINUS_CONFIG"]) if "SERINUS_CONFIG" in os.environ else None)
    chosen = named or Path("serinus.toml")
    if named is None and not chosen.exists():
        return {}
    try:
        return tomllib.loads(chosen.read_text(encoding="utf-8"))
    except OSError as error:
        why = error.strerror or "it is unreadable"
        raise BadInput(
            f"The settings file {chosen} cannot be read ({why}); check its path."
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"The settings file {chosen} is not valid TOML: {error}.") from None


def _refuse_unknown_variables() -> None:
    known = {f"{PREFIX}{name.upper()}" for name in Settings.model_fields} | _FOREIGN
    for variable in sorted(os.environ):
        if variable.startswith(PREFIX) and variable not in known:
            raise BadInput(
                f"{variable} is not a setting of Serinus; unset it, or see `serinus settings`."
            )


def _sentence(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=True)[0]
    name = ".".join(str(part) for part in first["loc"]) or "settings"
    if first["type"] == "extra_forbidden":
        return f"{name!r} is not a setting of Serinus; remove it, or see `serinus settings`."
    field = Settings.model_fields.get(name.split(".")[0])
    secret = field is not None and "Secret" in str(field.annotation)
    given = "" if secret else f" (got {str(first['input'])[:80]!r})"
    cause = str(first["msg"]).removeprefix("Value error, ").rstrip(".")
    return f"The setting {name} is wrong{given}: {cause}."


def _check_together(settings: Settings) -> None:
    """Rules that bind several settings."""
    taken: dict[int, str] = {}
    for name, port in settings.ports:
        if port in taken:
            raise BadInput(f"{name} and {taken[port]} are both port {port}; give each its own.")
        taken[port] = name
    if settings.window_s < 2 * settings.scrape_interval_s:
        raise BadInput(
            f"window_s is {settings.window_s:g} and scrape_interval_s is "
            f"{settings.scrape_interval_s:g}, so no window would hold two scrapes and nothing "
            "could be counted; make window_s twice as long as the interval at least."
        )
    if settings.gateway_log and settings.gateway != "haproxy":
        raise BadInput(
            f"gateway_log is on and gateway is {settings.gateway}, but only haproxy keeps such a "
            "log; turn gateway_log off, or set gateway to haproxy."
        )
    if settings.in_place and settings.autonomy is Autonomy.AUTONOMOUS:
        raise BadInput(
            "in_place is on and autonomy is autonomous, but a restart in place takes replicas from "
            "users and is judged by nothing, so a person must approve it; set autonomy to approve."
        )
    if settings.haproxy_socket is not None:
        if settings.gateway != "haproxy":
            raise BadInput(
                f"haproxy_socket is given and gateway is {settings.gateway}; set gateway to"
                " haproxy, or leave haproxy_socket out."
            )
        if settings.gateway_log:
            raise BadInput(
                "gateway_log is on and haproxy_socket is given, but only a HAProxy that Serinus"
                " configures keeps that log; turn gateway_log off, or leave haproxy_socket out."
            )
    if settings.metrics == "prometheus" and not settings.prometheus_url:
        raise BadInput("metrics is prometheus but prometheus_url is empty; set its address.")
    if settings.metrics == "scrape" and settings.metric_labels:
        raise BadInput(
            "metric_labels is for metrics of another server, and metrics is scrape; remove it, or "
            "set metrics to prometheus or grafana."
        )
    if settings.metrics == "grafana" and not settings.grafana_url:
        raise BadInput(
            "metrics is grafana but grafana_url is empty; set its address, and grafana_token."
        )
    if settings.planner == "model" and not (settings.model_base_url and settings.model_name):
        raise BadInput("planner is model but model_base_url or model_name is empty; set both.")
    if settings.model_api_key.get_secret_value() and settings.model_api_key_file is not None:
        raise BadInput("model_api_key and model_api_key_file are both set; remove one of them.")
    if settings.objective is Objective.THROUGHPUT:
        for name, is_open in (
            ("arrivals is open", settings.arrivals is Arrival.OPEN),
            ("a trace is given", settings.trace is not None),
        ):
            if is_open:
                raise BadInput(
                    f"objective is throughput but {name}, and of a load that comes at its own times"
                    " every config that keeps up gives the same throughput; set objective to"
                    " goodput or latency, or let rehearsals be closed and without a trace."
                )
    if settings.objective.weighs_heavier and not settings.load_levels[1:]:
        raise BadInput(
            "objective is cost, which is told by the load that suits an engine best, and"
            " load_levels has the live load alone; set it to 1,2,4 or the like."
        )
    if settings.trace is not None and settings.load_levels[1:]:
        raise BadInput(
            "A trace is given, which is repeated at its own times, and load_levels asks for heavier"
            " loads; remove one of them."
        )
    if bool(settings.grafana_url) != bool(settings.grafana_token.get_secret_value()):
        raise BadInput("grafana_url and grafana_token go together; set both or neither.")
    if not settings.simulated and settings.gpus == "separate":
        for name in ("production_gpu_ids", "canary_gpu_ids"):
            if not getattr(settings, name):
                raise BadInput(
                    f"{name} is empty, so rehearsals could land on production's GPU; name the GPUs "
                    "of both, or set gpus to 'none' for a vLLM that runs on the CPU."
                )
    if 0 < settings.trial_requests < settings.min_requests:
        raise BadInput(
            f"trial_requests is {settings.trial_requests}, fewer than the {settings.min_requests} "
            "of min_requests, so no rehearsal could decide anything; raise it, or set it to 0."
        )
    _check_gpus(settings)


def _check_gpus(settings: Settings) -> None:
    """No GPU is given away twice, and engines that stand for each other have as many."""
    shared = set(settings.production_gpu_ids) & set(settings.canary_gpu_ids)
    if shared:
        raise BadInput(
            f"GPU {', '.join(sorted(shared))} is given to production and to the canary lane; "
            "rehearsals need a GPU of their own."
        )
    taken = {*settings.production_gpu_ids, *settings.canary_gpu_ids}
    for name, kind, engines, first, gpu_ids, why in (
        (
            "further_replicas",
            "Replica",
            settings.further_replicas,
            "production_gpu_ids",
            settings.production_gpu_ids,
            "a rehearsal stands for each of them",
        ),
        (
            "search_lanes",
            "Lane",
            settings.search_lanes,
            "canary_gpu_ids",
            settings.canary_gpu_ids,
            "figures of unlike engines cannot be compared",
        ),
    ):
        for n, engine in enumerate(engines, start=1):
            if len(engine.gpu_ids) != len(gpu_ids):
                raise BadInput(
                    f"{kind} {n} of {name} has {len(engine.gpu_ids)} GPUs and {first} "
                    f"{len(gpu_ids)}, and {why}; give it as many of the same kind."
                )
            if again := taken.intersection(engine.gpu_ids):
                raise BadInput(
                    f"GPU {', '.join(sorted(again))} of {kind.lower()} {n} of {name} is given away "
                    "already; each engine needs GPUs of its own."
                )
            taken.update(engine.gpu_ids)
        if engines and not settings.simulated and settings.gpus == "none":
            raise BadInput(
                f"{name} has engines and gpus is 'none', so they would share the CPU's cores with "
                f"all others and slow each other down; remove {name}."
            )
