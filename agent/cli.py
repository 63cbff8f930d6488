"""`serinus …`: what a person types; every error is one sentence and exit code 2."""

from __future__ import annotations

import asyncio
import getpass
import logging
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from agent.settings import Settings, load
from canary.gateways.haproxy_pasted import Part
from domain.approval import CommandKind
from domain.errors import BadInput, SerinusError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Keeps a fleet of vLLM servers tuned to its live traffic.",
)
knobs = typer.Typer(no_args_is_help=True, help="The catalogue of what Serinus tunes.")
app.add_typer(knobs, name="knobs")
rollout = typer.Typer(no_args_is_help=True, help="One move of production to another config.")
app.add_typer(rollout, name="rollout")
gateway = typer.Typer(no_args_is_help=True, help="What splits the traffic.")
app.add_typer(gateway, name="gateway")
agent = typer.Typer(no_args_is_help=True, help="Questions about the fleet.")
app.add_typer(agent, name="agent")
ConfigFile = Annotated[
    Path | None, typer.Option("--config", "-c", help="Settings file; serinus.toml by default.")
]
RolloutId = Annotated[
    str,
    typer.Argument(
        metavar="[ID]", help="The rollout's id; without it the one under way, else the latest."
    ),
]


@app.command()
def demo(
    report: Annotated[Path, typer.Option(help="Where the report is written.")] = Path(
        "serinus-demo/report.html"
    ),
    vllm: Annotated[
        Path | None, typer.Option(help="Run real engines: a vLLM executable for CPUs.")
    ] = None,
    model: Annotated[
        Path | None, typer.Option(help="The folder of the small model that --vllm serves.")
    ] = None,
) -> None:
    """Show the whole loop under live traffic: on simulated engines in under four minutes, or on
    real ones of this machine's CPU in about twenty."""
    from agent.demo.run import run_demo
    from agent.demo.scenario import chosen

    raise typer.Exit(asyncio.run(run_demo(chosen(vllm, model), report)))


@app.command()
def up(config: ConfigFile = None) -> None:
    """Run the controller and its dashboard until Ctrl-C; engines and gateway keep serving."""
    settings = load(config)
    from agent.service import serve

    asyncio.run(serve(settings))


@app.command()
def down(config: ConfigFile = None) -> None:
    """Stop every engine that Serinus started, and the gateway unless it is your own."""
    settings = load(config)
    from agent.service import shut_down

    typer.echo(asyncio.run(shut_down(settings)))


@app.command()
def status(config: ConfigFile = None) -> None:
    """Say what is under way, from the store."""
    from agent.status import told

    typer.echo(told(load(config).store_url))


@app.command()
def report(
    study: Annotated[
        str, typer.Argument(help="The study's id; the latest are told where it is unknown.")
    ],
    config: ConfigFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of a page.")] = False,
    out: Annotated[
        Path | None, typer.Option(help="The file to write; standard output by default.")
    ] = None,
) -> None:
    """Write a study's report from the store: all that was tried, seen, decided and spent."""
    settings = load(config)
    from agent.study_report import text, written

    told = text(settings.store_url, study, as_json=as_json, simulated=settings.simulated)
    typer.echo(told if out is None else written(told, out))


@rollout.command()
def show(
    rollout_id: RolloutId = "",
    config: ConfigFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of sentences.")] = False,
) -> None:
    """Show a rollout with every verdict on it, each judged anew from the store."""
    settings = load(config)
    from agent.rollout_told import text

    typer.echo(text(settings.store_url, rollout_id, as_json=as_json))


@rollout.command("pause")
def pause_rollout(rollout_id: RolloutId = "", config: ConfigFile = None) -> None:
    """Keep the rollout at its weight."""
    _order(load(config), CommandKind.ROLLOUT_PAUSE, rollout_id)


@rollout.command("resume")
def resume_rollout(rollout_id: RolloutId = "", config: ConfigFile = None) -> None:
    """Let the rollout go on after a pause, whatever was changed by hand."""
    _order(load(config), CommandKind.ROLLOUT_RESUME, rollout_id)


@rollout.command()
def abort(rollout_id: RolloutId = "", config: ConfigFile = None) -> None:
    """End the rollout if it is under way: reject it before its approval, else send it back."""
    _order(load(config), CommandKind.ROLLOUT_ABORT, rollout_id)


@rollout.command()
def rollback(rollout_id: RolloutId = "", config: ConfigFile = None) -> None:
    """As abort, and take it back where it was promoted and production still runs its config."""
    _order(load(config), CommandKind.ROLLOUT_ROLLBACK, rollout_id)


@agent.command()
def ask(
    question: Annotated[str, typer.Argument(help="Such as 'why is TTFT high since 14:00?'.")],
    config: ConfigFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of sentences.")] = False,
) -> None:
    """Answer a question about the fleet's traffic from its metrics; changes nothing."""
    settings = load(config)
    from agent.asked import asked
    from agent.inquiry.told import document, text

    logging.basicConfig(level=logging.ERROR)  # what was not read is in the answer
    answered = asyncio.run(asked(settings, question))
    typer.echo(document(answered) if as_json else text(answered))


@app.command()
def doctor(
    config: ConfigFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of sentences.")] = False,
) -> None:
    """Say which signals of the traffic are found where, and what each missing one costs; exit code
    1 where a required one is missing."""
    settings = load(config)
    from agent.doctor import examined
    from agent.findings import document, text

    logging.basicConfig(level=logging.ERROR)  # what is wrong stands in the report
    report = asyncio.run(examined(settings))
    typer.echo(document(report) if as_json else text(report))
    raise typer.Exit(int(not report.complete))


@app.command()
def tune(config: ConfigFile = None) -> None:
    """Ask for a study of the present traffic."""
    _order(load(config), CommandKind.TUNE)


@app.command()
def pause(config: ConfigFile = None) -> None:
    """Begin nothing new and keep a rollout at its weight, until the controller resumes."""
    _order(load(config), CommandKind.PAUSE)


@app.command()
def resume(config: ConfigFile = None) -> None:
    """Go on after a pause."""
    _order(load(config), CommandKind.RESUME)


@app.command()
def requests(config: ConfigFile = None) -> None:
    """Print the gateway's log of the latest requests: a trace, without content or names."""
    settings = load(config)
    from agent.loads import logged

    if settings.gateway != "haproxy":
        raise BadInput(f"Only haproxy keeps a log of requests, and gateway is {settings.gateway}.")
    if settings.haproxy_socket is not None:
        raise BadInput("Only a HAProxy that Serinus configures keeps a log of requests for it.")
    for line in asyncio.run(logged(settings.state_dir / "gateway")):
        typer.echo(line)


@gateway.command("config")
def gateway_config(
    config: ConfigFile = None,
    part: Annotated[Part | None, typer.Option(help="Only this part, as it is pasted.")] = None,
) -> None:
    """Print what a HAProxy of your own needs to be driven (`haproxy_socket`)."""
    settings = load(config)
    from agent.gateways import pasted

    typer.echo(pasted(settings, part), nl=False)


@app.command("settings")
def show_settings(config: ConfigFile = None) -> None:
    """List every setting with its present value."""
    for name, value in load(config).model_dump().items():
        typer.echo(f"{name} = {_shown(value)}")


@knobs.command()
def sync(
    vllm: Annotated[Path, typer.Option(help="vLLM's own script, for example .venv/bin/vllm.")],
    version: Annotated[str, typer.Option(help="The catalogue's version of vLLM.")] = "0.32",
    everything: Annotated[
        bool, typer.Option("--all", help="Also list what the catalogue does not name.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of sentences.")] = False,
) -> None:
    """Say where the catalogue and an installed vLLM disagree; exit code 1 where they do."""
    from agent.knobs import sync as synced

    report = synced(vllm, version, everything=everything, as_json=as_json)
    typer.echo(report.text)
    raise typer.Exit(int(report.drifted))


def main() -> None:
    """The console script."""
    try:
        app()
    except SerinusError as error:
        typer.echo(str(error), err=True)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


def _order(settings: Settings, kind: CommandKind, rollout_id: str = "") -> None:
    from agent.status import ordered

    typer.echo(ordered(settings.store_url, kind, getpass.getuser(), rollout_id))


def _shown(value: Any) -> str:
    return str(getattr(value, "value", value)) if value != "" else "''"


if __name__ == "__main__":
    main()
