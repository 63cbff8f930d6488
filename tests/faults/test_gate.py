"""The gate: a rollout waits for a person, people differ, and controllers are killed meanwhile.

Guards the requirement that of several answers one wins, and that exactly one action follows from
it, whoever is killed at the gate or as the answer is taken up.
"""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.demo.ports import free_ports
from agent.executor import described
from agent.store import UnitOfWork
from domain.engine import EngineConfig
from domain.rollout import Phase, StartEngine
from tests.fakes.running_serinus import RunningSerinus, status, until

CANDIDATE = EngineConfig.of({"async_scheduling": True})
START = described(StartEngine(slot="canary-0", config=CANDIDATE))
PEOPLE = (("ada", "approve"), ("bob", "approve"), ("cyd", "reject"), ("dan", "reject"))
KILLED = ("at the gate", "as the answer is taken up", "nobody")


@pytest.fixture
def serinus(tmp_path: Path) -> Iterator[RunningSerinus]:
    tokens = {name: f"token-of-{name}" for name, _ in PEOPLE}
    running = RunningSerinus(tmp_path, autonomy="approve", api_tokens=tokens)
    try:
        yield running
    finally:
        running.close()


def answered_at_once(serinus: RunningSerinus, ports: tuple[int, ...]) -> str:
    """All people answer at one moment, in turn over each port; whose answer won."""
    together = threading.Barrier(len(PEOPLE))
    statuses: dict[str, int] = {}

    def answers(actor: str, answer: str, port: int) -> None:
        together.wait()
        statuses[actor] = serinus.answer(actor, answer, port)

    asked = [
        threading.Thread(target=answers, args=(*person, ports[place % len(ports)]))
        for place, person in enumerate(PEOPLE)
    ]
    for person in asked:
        person.start()
    for person in asked:
        person.join()
    told = sorted(statuses.values())
    assert told == [200, 409, 409, 409], statuses
    (winner,) = (actor for actor, given in statuses.items() if given == 200)
    return winner


def newest_phase(uow: UnitOfWork) -> Phase:
    return uow.rollouts.latest(1)[0].phase


@pytest.mark.parametrize("killed", KILLED)
def test_22_of_four_answers_at_once_one_wins_and_one_action_follows(
    serinus: RunningSerinus, killed: str
) -> None:
    ports = (int(serinus.settings["api_port"]), free_ports()[1])
    leader = serinus.up()
    serinus.serves()
    serinus.up(serinus.write("second.toml", api_port=ports[1]))
    for port in ports:
        healthy = f"http://127.0.0.1:{port}/healthz"
        until(lambda url=healthy: status(url) == 200, "the API answers", 60, serinus.said)
    until(lambda: "watching" in serinus.heard(1), "the second watches", 60, serinus.said)
    serinus.begin_rollout(CANDIDATE, asks=True)
    if killed == "at the gate":
        serinus.kill(leader)
        ports = ports[1:]

    winner = answered_at_once(serinus, ports)
    if killed == "as the answer is taken up":
        serinus.kill(leader)

    left = serinus.until(
        lambda uow: (found := newest_phase(uow)) is not Phase.WAITING_APPROVAL and found,
        "the answer is followed",
    )
    approved = dict(PEOPLE)[winner] == "approve"
    assert (left is Phase.REJECTED) is not approved
    if approved:
        serinus.until(lambda uow: newest_phase(uow) is Phase.PROGRESSING, "it progresses", 120)
    with serinus.store.view() as uow:
        rollout = uow.rollouts.latest(1)[0]
        (question,) = uow.approvals.of(rollout.id)
    assert question.answer is not None
    assert (question.answer.value, question.answered_by) == (dict(PEOPLE)[winner], winner)
    # A controller that was killed as it began the engine has told nobody.
    assert [event.sentence for event in serinus.events()].count(START) <= int(approved)
    lane = str(serinus.settings["canary_port"])
    assert sum(lane in engine.cmdline() for engine in serinus.engines()) == int(approved)
