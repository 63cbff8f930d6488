"""The store's promises: nothing without a commit, one winner, no write by a deposed controller."""

import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier

import pytest

from agent.store import DONE, GivenVerdict, Store, decode, encode, open_store
from canary.budget import Run
from domain.approval import Answer, Command, CommandKind
from domain.errors import BadInput, Conflict, InvariantViolation, LeaseLost, NotFound, Temporary
from domain.events import Event, EventKind
from domain.rollout import Phase
from domain.study import Failure, FailureKind, Study, StudyState, TrialState
from tests.fakes import records

ROOT = Path(__file__).parents[2]


@pytest.fixture
def waiting(store: Store) -> Store:
    """A study with a rollout that waits for the answer to an open request."""
    with store.work() as uow:
        uow.studies.add(records.study())
        uow.rollouts.add(records.rollout())
        uow.approvals.add(records.request())
        uow.commit()
    return store


def test_nothing_is_written_without_a_commit(store: Store) -> None:
    with store.work() as uow:
        uow.studies.add(records.study())
        assert uow.studies.get("study-1") == records.study()
    with store.view() as uow, pytest.raises(NotFound, match="no study 'study-1'"):
        uow.studies.get("study-1")


def test_nothing_is_written_when_the_block_fails(store: Store) -> None:
    with pytest.raises(RuntimeError), store.work() as uow:
        uow.studies.add(records.study())
        raise RuntimeError
    with store.view() as uow:
        assert uow.studies.latest(9) == ()


def test_a_view_cannot_be_committed(store: Store) -> None:
    with store.view() as uow, pytest.raises(InvariantViolation):
        uow.commit()


def test_a_view_does_not_wait_for_a_writer(store: Store) -> None:
    with store.work() as writer:
        token = writer.lease.acquire("one", 100.0, 10.0)
        assert token is not None
        writer.commit()
    with store.work() as writer:
        writer.studies.add(records.study())
        writer.lease.require(token)
        with store.view() as uow:
            assert uow.studies.latest(9) == ()
            assert uow.lease.is_current(token)
            assert not uow.lease.is_current(token - 1)
        writer.commit()


def test_a_view_shows_one_moment_whatever_is_written_meanwhile(store: Store) -> None:
    with store.view() as uow:
        assert uow.state.get("key") is None
        with store.work() as writer:
            writer.state.set("key", "later")
            writer.commit()
        assert uow.state.get("key") is None
    with store.view() as uow:
        assert uow.state.get("key") == "later"


def test_studies(store: Store) -> None:
    old, new = records.study(), records.study(id="study-2", created_s=1001.0)
    with store.work() as uow:
        uow.studies.add(old)
        uow.studies.add(new)
        assert uow.studies.running() == new
        ended = replace(new, state=StudyState.NOTHING_BETTER, conclusion="Nothing better.")
        uow.studies.save(ended)
        assert uow.studies.running() == old
        assert uow.studies.latest(9) == (ended, old)
        assert uow.studies.latest(1) == (ended,)
        assert uow.studies.begun(9) == (new.created_s, old.created_s)
        assert uow.studies.begun(1) == (new.created_s,)
        with pytest.raises(NotFound):
            uow.studies.save(records.study(id="unknown"))
        uow.commit()
    with store.work() as uow, pytest.raises(Conflict):
        uow.studies.add(old)


def test_trials(store: Store) -> None:
    first, second = records.trial(1), records.trial(2)
    with store.work() as uow:
        uow.studies.add(records.study())
        uow.trials.add(second)
        uow.trials.add(first)
        measured = replace(first, measurement=records.measurement())
        uow.trials.save(measured)
        assert uow.trials.of("study-1") == (measured, second)
        with pytest.raises(NotFound):
            uow.trials.save(records.trial(3))
        uow.commit()
    with store.work() as uow, pytest.raises(Conflict):
        uow.trials.add(replace(first, id="another"))
    with store.work() as uow, pytest.raises(NotFound, match="refers to"):
        uow.trials.add(replace(first, id="another", study_id="unknown"))


def test_runs_are_those_of_the_studies_begun_since_and_of_the_one_before(store: Store) -> None:
    cut = Failure(kind=FailureKind.INTERRUPTED, sentence="Stopped.")
    refused = Failure(kind=FailureKind.REFUSED, sentence="No.")
    with store.work() as uow:
        for number, created_s in enumerate((100.0, 200.0, 300.0), start=1):
            study_id = f"study-{number}"
            uow.studies.add(records.study(id=study_id, created_s=created_s))
            trial = records.trial(
                number, study_id=study_id, started_s=created_s + 1, ended_s=created_s + 5
            )
            uow.trials.add(trial)
        extra = {"study_id": "study-3", "state": TrialState.FAILED}
        uow.trials.add(records.trial(4, **extra, started_s=310.0, ended_s=320.0, failure=cut))
        uow.trials.add(records.trial(5, **extra, started_s=320.0, ended_s=320.0, failure=refused))
        uow.trials.add(records.trial(6, study_id="study-3", started_s=330.0))
        uow.commit()
    latest = {
        Run(301.0, 305.0),
        Run(310.0, 320.0, cut_off=True),
        Run(320.0, 320.0, refused=True),
        Run(330.0, None),
    }
    before = Run(201.0, 205.0)
    with store.view() as uow:
        assert set(uow.trials.runs_since(9e9)) == latest
        assert set(uow.trials.runs_since(300.0)) == latest
        assert set(uow.trials.runs_since(299.0)) == latest | {before}
        assert set(uow.trials.runs_since(50.0)) == latest | {before, Run(101.0, 105.0)}


def test_a_study_of_another_version_without_a_reckoned_cost_is_read() -> None:
    stored = encode(records.study())
    assert isinstance(stored, dict)
    del stored["lane"], stored["replicas"]
    assert decode(Study, stored) == records.study(replicas=1)
    several = records.study(replicas=3)
    assert decode(Study, encode(several)) == several


def test_a_rollout_is_saved_on_the_version_it_was_loaded_at(waiting: Store) -> None:
    with waiting.work() as uow:
        loaded = uow.rollouts.get("rollout-1")
        stored = uow.rollouts.save(replace(loaded, phase=Phase.STARTING))
        assert stored == replace(loaded, phase=Phase.STARTING, version=2)
        assert uow.rollouts.active() == uow.rollouts.get("rollout-1") == stored
        with pytest.raises(Conflict, match="at version 2, not 1"):
            uow.rollouts.save(replace(loaded, paused=True))
        with pytest.raises(NotFound):
            uow.rollouts.save(replace(loaded, id="unknown"))
        assert uow.rollouts.get("rollout-1") == stored


def test_one_rollout_is_active_at_most(waiting: Store) -> None:
    another = records.rollout(id="rollout-2", study_id="", created_s=2001.0)
    with waiting.work() as uow, pytest.raises(Conflict):
        uow.rollouts.add(another)
    with waiting.work() as uow:
        ended = uow.rollouts.save(replace(records.rollout(), phase=Phase.REJECTED))
        assert uow.rollouts.active() is None
        uow.rollouts.add(another)
        assert uow.rollouts.active() == another
        assert uow.rollouts.latest(9) == (another, ended)


def test_verdicts_are_kept_in_order_for_replay(store: Store) -> None:
    one, two = records.verdict(), records.verdict(reason="Too few requests.")
    with store.work() as uow:
        uow.verdicts.add("rollout-1", 10.0, one)
        uow.verdicts.add("study-1", 11.0, one)
        uow.verdicts.add("rollout-1", 9.0, two)
        assert uow.verdicts.of("rollout-1") == (GivenVerdict(10.0, one), GivenVerdict(9.0, two))


def test_events_newest_first_and_by_kind(store: Store) -> None:
    events = [
        Event(at_s=float(n), kind=kind, sentence=f"Fact {n}.")
        for n, kind in enumerate((EventKind.HELD, EventKind.PROMOTED, EventKind.HELD))
    ]
    with store.work() as uow:
        for event in events:
            uow.events.add(event)
        assert uow.events.latest(2) == (events[2], events[1])
        assert uow.events.latest(9, {EventKind.PROMOTED}) == (events[1],)
        assert uow.events.latest(9, ()) == ()


def test_state_has_one_value_a_key(store: Store) -> None:
    with store.work() as uow:
        assert uow.state.get("active") is None
        uow.state.set("active", {"digest": "abc"})
        uow.state.set("active", ["changed"])
        assert uow.state.get("active") == ["changed"]


def test_an_approval_is_answered_once(waiting: Store) -> None:
    with waiting.work() as uow:
        answered = uow.approvals.answer("approval-1", Answer.APPROVE, "ada", 3000.0)
        assert answered == replace(
            records.request(), answer=Answer.APPROVE, answered_by="ada", answered_s=3000.0
        )
        assert uow.approvals.of("rollout-1") == (answered,)
        assert uow.approvals.open() == ()
        with pytest.raises(Conflict, match="already approved by ada"):
            uow.approvals.answer("approval-1", Answer.REJECT, "bob", 3001.0)
        with pytest.raises(NotFound):
            uow.approvals.answer("unknown", Answer.REJECT, "bob", 3001.0)


def test_an_expired_approval_cannot_be_used(waiting: Store) -> None:
    with waiting.work() as uow:
        with pytest.raises(Conflict, match="expired 0 s ago"):
            uow.approvals.answer("approval-1", Answer.APPROVE, "ada", 5000.0)
        assert uow.approvals.open() == (records.request(),)


def test_an_approval_of_an_older_version_cannot_be_used(waiting: Store) -> None:
    """Reported of another controller as flagger#1248: an approval outlived what it was for."""
    with waiting.work() as uow:
        uow.rollouts.save(replace(records.rollout(), paused=True))
        with pytest.raises(Conflict, match="has changed since"):
            uow.approvals.answer("approval-1", Answer.APPROVE, "ada", 3000.0)


def test_an_answer_waits_for_a_change_of_the_rollout_and_then_is_to_an_older_version(
    waiting: Store, url: str
) -> None:
    with open_store(url, busy_timeout_s=0.2) as impatient:
        with waiting.work() as saver:
            saver.rollouts.save(replace(records.rollout(), phase=Phase.REJECTED))
            with impatient.work() as uow, pytest.raises(Temporary, match="locked"):
                uow.approvals.answer("approval-1", Answer.APPROVE, "ada", 3000.0)
            saver.commit()
        with impatient.work() as uow, pytest.raises(Conflict, match="has changed since"):
            uow.approvals.answer("approval-1", Answer.APPROVE, "ada", 3000.0)


def _race(*acts: Callable[[], object]) -> list[object]:
    """All at once; results and errors in the order given."""
    barrier = Barrier(len(acts))

    def run(act: Callable[[], object]) -> object:
        barrier.wait()
        try:
            return act()
        except Conflict as conflict:
            return conflict

    with ThreadPoolExecutor(len(acts)) as pool:
        return list(pool.map(run, acts))


def test_of_two_people_at_once_one_wins(waiting: Store) -> None:
    def by(actor: str, answer: Answer) -> Callable[[], object]:
        def act() -> object:
            with waiting.work() as uow:
                uow.approvals.answer("approval-1", answer, actor, 3000.0)
                uow.commit()
            return actor

        return act

    results = _race(by("ada", Answer.APPROVE), by("bob", Answer.REJECT))
    with waiting.view() as uow:
        (stored,) = uow.approvals.of("rollout-1")
    winners = [result for result in results if isinstance(result, str)]
    assert winners == [stored.answered_by]
    assert sum(isinstance(result, Conflict) for result in results) == 1


def test_of_two_savers_at_once_one_wins(waiting: Store) -> None:
    def save(reason: str) -> Callable[[], object]:
        def act() -> object:
            with waiting.work() as uow:
                uow.rollouts.save(replace(records.rollout(), reason=reason))
                uow.commit()
            return reason

        return act

    results = _race(save("one"), save("two"))
    with waiting.view() as uow:
        stored = uow.rollouts.get("rollout-1")
    assert stored.version == 2
    assert [result for result in results if isinstance(result, str)] == [stored.reason]


def test_of_controllers_at_once_one_gets_the_lease(url: str) -> None:
    """Each has a connection of its own, as a process has."""

    def acquires(holder: str) -> Callable[[], object]:
        def act() -> object:
            with open_store(url) as store, store.work() as uow:
                token = uow.lease.acquire(holder, 100.0, 10.0)
                uow.commit()
            return token

        return act

    tokens = _race(*(acquires(f"controller-{number}") for number in range(6)))
    assert sorted(token for token in tokens if token is not None) == [1]
    with open_store(url) as store, store.view() as uow:
        assert uow.lease.is_current(1)


def test_of_processes_at_once_one_leads(url: str) -> None:
    program = (
        "import sys; from agent.leadership import Leadership; from agent.store import open_store\n"
        "with open_store(sys.argv[1]) as store:\n"
        "    print(Leadership(store, holder=sys.argv[2], ttl_s=60.0).renew(100.0))"
    )
    running = [
        subprocess.Popen(
            [sys.executable, "-c", program, url, f"process-{number}"],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(3)
    ]
    ends = [process.communicate(timeout=120) for process in running]
    assert [said for _, said in ends] == [""] * 3
    assert sorted(said for said, _ in ends) == ["False\n", "False\n", "True\n"]


def test_of_writers_of_one_key_at_once_the_last_counts(store: Store) -> None:
    def sets(value: str) -> Callable[[], object]:
        def act() -> object:
            with store.work() as uow:
                uow.state.set("key", value)
                uow.commit()
            return value

        return act

    assert _race(*map(sets, "abcd")) == list("abcd")
    with store.view() as uow:
        assert uow.state.get("key") in set("abcd")


def test_of_the_same_commands_at_once_one_is_pending_and_all_are_told_of_it(
    waiting: Store,
) -> None:
    def orders(number: int) -> Callable[[], object]:
        def act() -> object:
            wanted = records.command(
                id=f"c{number}", kind=CommandKind.ROLLOUT_ABORT, rollout_id="rollout-1"
            )
            with waiting.work() as uow:
                kept = uow.commands.add(wanted)
                uow.commit()
            return kept

        return act

    kept = _race(*map(orders, range(4)))
    with waiting.view() as uow:
        assert kept == [*uow.commands.pending()] * 4


def test_of_two_rollouts_at_once_one_begins(store: Store) -> None:
    def begins(rollout_id: str) -> Callable[[], object]:
        def act() -> object:
            with store.work() as uow:
                uow.rollouts.add(records.rollout(id=rollout_id, study_id=""))
                uow.commit()
            return rollout_id

        return act

    results = _race(begins("one"), begins("two"))
    with store.view() as uow:
        active = uow.rollouts.active()
    assert active is not None
    assert [result for result in results if isinstance(result, str)] == [active.id]
    assert sum(isinstance(result, Conflict) for result in results) == 1


def test_a_command_given_twice_is_pending_once(store: Store) -> None:
    first, second = records.command(), records.command(id="command-2", actor="bob")
    with store.work() as uow:
        assert uow.commands.add(first) == first
        assert uow.commands.add(second) == first
        tune = uow.commands.add(records.command(id="command-3", kind=CommandKind.TUNE))
        assert uow.commands.pending() == (first, tune)
        assert uow.commands.take("command-1", "Paused.") == replace(first, outcome="Paused.")
        assert uow.commands.pending() == (tune,)
        assert uow.commands.add(second) == second
        with pytest.raises(Conflict, match="taken before"):
            uow.commands.take("command-1", "Again.")
        with pytest.raises(NotFound):
            uow.commands.take("unknown", "")


def test_a_command_for_a_rollout_is_pending_once_for_each(waiting: Store) -> None:
    def abort(id: str, rollout_id: str) -> Command:
        return records.command(id=id, kind=CommandKind.ROLLOUT_ABORT, rollout_id=rollout_id)

    with waiting.work() as uow:
        uow.rollouts.add(records.rollout(id="rollout-2", study_id="", phase=Phase.REJECTED))
        one, other = abort("c1", "rollout-1"), abort("c2", "rollout-2")
        assert (uow.commands.add(one), uow.commands.add(other)) == (one, other)
        assert uow.commands.add(abort("c3", "rollout-1")) == one
        assert uow.commands.pending() == (one, other)
        with pytest.raises(NotFound, match="no rollout 'none'"):
            uow.commands.add(abort("c4", "none"))
        with pytest.raises(BadInput, match="give its id as rollout_id"):
            uow.commands.add(abort("c5", ""))
        with pytest.raises(BadInput, match="leave rollout_id out"):
            uow.commands.add(records.command(id="c6", rollout_id="rollout-1"))


def test_the_rollout_promoted_last_is_one_that_has_not_gone_back(waiting: Store) -> None:
    with waiting.work() as uow:
        assert uow.rollouts.promoted_last() is None
        ended = {"study_id": "", "phase": Phase.PROMOTED}
        first = records.rollout(id="r1", created_s=10.0, **ended)
        second = records.rollout(id="r2", created_s=11.0, **ended)
        uow.rollouts.add(second)
        uow.rollouts.add(first)
        assert uow.rollouts.promoted_last() == second
        uow.rollouts.save(replace(second, phase=Phase.ROLLED_BACK))
        assert uow.rollouts.promoted_last() == first


def test_an_action_stays_unfinished_until_its_outcome_is_known(store: Store) -> None:
    with store.work() as uow:
        first = uow.actions.begin("set weight 5", "rollout-1", 10.0)
        second = uow.actions.begin("set weight 25", "rollout-1", 11.0)
        assert [action.id for action in uow.actions.unfinished()] == [first, second]
        uow.actions.finish(first, "read back 5", 12.0)
        (left,) = uow.actions.unfinished()
        assert (left.intent, left.subject, left.began_s) == ("set weight 25", "rollout-1", 11.0)
        with pytest.raises(Conflict):
            uow.actions.finish(first, "again", 13.0)
        with pytest.raises(NotFound):
            uow.actions.finish(99, "never begun", 13.0)


def test_the_last_of_several_intents_is_found_with_its_outcome(store: Store) -> None:
    with store.work() as uow:
        assert uow.actions.last(("admit", "drain")) is None
        first = uow.actions.begin("admit", "healing", 10.0)
        uow.actions.begin("admit another", "healing", 11.0)
        uow.actions.finish(first, DONE, 12.0)
        found = uow.actions.last(("admit", "drain"))
        assert (found.id, found.outcome, found.ended_s) == (first, DONE, 12.0)
        second = uow.actions.begin("drain", "r1", 13.0)
        found = uow.actions.last(("admit", "drain"))
        assert (found.id, found.outcome) == (second, None)


def test_what_was_done_for_one_subject_is_counted_within_a_time(store: Store) -> None:
    begun = [
        ("start a", "healing", 10.0, DONE),
        ("start a", "healing", 20.0, DONE),
        ("start a", "healing", 21.0, "failed: no room"),
        ("start a", "healing", 22.0, None),
        ("start a", "rollout-1", 23.0, DONE),
        ("start b", "healing", 24.0, DONE),
        ("start a", "healing", 30.0, DONE),
    ]
    with store.work() as uow:
        assert uow.actions.done("start a", "healing", 0.0, 99.0) == 0
        for intent, subject, began_s, outcome in begun:
            action = uow.actions.begin(intent, subject, began_s)
            if outcome is not None:
                uow.actions.finish(action, outcome, began_s + 1.0)
        assert uow.actions.done("start a", "healing", 0.0, 99.0) == 3
        assert uow.actions.done("start a", "healing", 11.0, 29.0) == 1


def test_the_lease_has_one_holder_and_its_token_rises_with_each_change(store: Store) -> None:
    with store.work() as uow:
        one = uow.lease.acquire("one", 100.0, 10.0)
        assert one is not None
        assert uow.lease.acquire("one", 105.0, 10.0) == one
        assert uow.lease.acquire("two", 114.0, 10.0) is None
        two = uow.lease.acquire("two", 115.0, 10.0)
        assert two is not None and two > one
        with pytest.raises(LeaseLost):
            uow.lease.require(one)
        uow.lease.release(one)
        uow.lease.require(two)
        assert uow.lease.acquire("three", 116.0, 10.0) is None
        uow.lease.release(two)
        three = uow.lease.acquire("three", 116.0, 10.0)
        assert three is not None and three > two


def test_a_deposed_controller_cannot_write(store: Store) -> None:
    """Reported of another controller as argo-rollouts#2117: two leaders at once."""
    with store.work() as uow:
        old = uow.lease.acquire("old", 100.0, 10.0)
        uow.commit()
    with store.work(fencing_token=old) as uow:
        uow.state.set("written by", "old")
        uow.commit()
    with store.work() as uow:
        assert uow.lease.acquire("new", 200.0, 10.0) is not None
        uow.commit()
    with store.work(fencing_token=old) as uow:
        uow.state.set("written by", "old, after it woke")
        with pytest.raises(LeaseLost):
            uow.commit()
    with store.view() as uow:
        assert uow.state.get("written by") == "old"


def test_a_database_locked_for_too_long_is_temporary(store: Store, url: str) -> None:
    with open_store(url, busy_timeout_s=0.05) as impatient, store.work() as holder:
        holder.state.set("key", "value")
        with impatient.work() as uow, pytest.raises(Temporary, match="locked"):
            uow.state.set("key", "another")
        holder.commit()
        with impatient.view() as uow:
            assert uow.state.get("key") == "value"


def test_a_store_survives_being_closed_and_opened(url: str) -> None:
    with open_store(url) as store, store.work() as uow:
        uow.studies.add(records.study())
        uow.commit()
    with open_store(url) as store, store.view() as uow:
        assert uow.studies.latest(1) == (records.study(),)
