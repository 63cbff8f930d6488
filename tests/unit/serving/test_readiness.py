"""When an engine is warm, late, hung or dead."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from domain.fleet import ReplicaState
from domain.study import Failure, FailureKind
from serving.readiness import Limits, Observation, Silence, readiness

LIMITS = Limits(start_timeout_s=300.0, hung_after_s=15.0, hung_after_observes=5)
YOUNG = Observation(started_s=1000.0, warm=False, note="/health does not answer")
SERVING = Observation(started_s=1000.0, warm=True)
ENDED = Failure(kind=FailureKind.OUT_OF_MEMORY, sentence="The engine ran out of memory.")


def silence_of(*looks_s: float) -> Silence:
    silence = Silence()
    for look_s in looks_s:
        silence = silence.after(False, look_s)
    return silence


def test_an_engine_that_never_answered_an_inference_is_starting() -> None:
    verdict = readiness(YOUNG, LIMITS, 1299.0)
    assert (verdict.state, verdict.detail) == (ReplicaState.STARTING, "/health does not answer")


def test_a_start_that_takes_too_long_is_dead_and_says_what_it_waited_for() -> None:
    verdict = readiness(YOUNG, LIMITS, 1301.0)
    assert verdict.state is ReplicaState.DEAD
    assert verdict.detail == "Not ready 300 s after its start: /health does not answer"
    assert verdict.failure is not None
    assert verdict.failure.kind is FailureKind.START_TIMEOUT


def test_a_warm_engine_has_no_start_timeout() -> None:
    assert readiness(SERVING, LIMITS, 99999.0) == (ReplicaState.WARM, "", None)


def test_a_process_that_is_gone_is_dead_with_its_cause() -> None:
    verdict = readiness(replace(SERVING, ended=ENDED), LIMITS, 1001.0)
    assert verdict.state is ReplicaState.DEAD
    assert verdict.detail == "The engine ran out of memory."
    assert verdict.failure == ENDED


def test_a_stop_under_way_outweighs_everything_else() -> None:
    seen = replace(YOUNG, stopping=True, ended=ENDED)
    assert readiness(seen, LIMITS, 99999.0).state is ReplicaState.STOPPING


def test_one_missed_answer_does_not_condemn_a_warm_engine() -> None:
    seen = replace(SERVING, silence=silence_of(1100.0))
    verdict = readiness(seen, LIMITS, 1100.0)
    assert verdict.state is ReplicaState.WARM
    assert verdict.detail == "No healthy answer in the last 1 look, over 0 s."


def test_many_missed_answers_over_some_time_are_a_hang() -> None:
    silence = silence_of(1100.0, 1104.0, 1108.0, 1112.0, 1116.0)
    verdict = readiness(replace(SERVING, silence=silence), LIMITS, 1116.0)
    assert verdict.state is ReplicaState.DEAD
    assert verdict.detail == "No healthy answer in the last 5 looks, over 16 s."
    assert verdict.failure == Failure(kind=FailureKind.HUNG, sentence=verdict.detail)


def test_a_fast_cycle_alone_is_no_hang() -> None:
    silence = silence_of(*(1100.0 + 0.1 * look for look in range(50)))
    seen = replace(SERVING, silence=silence)
    assert readiness(seen, LIMITS, 1105.0).state is ReplicaState.WARM


def test_a_jump_of_the_clock_alone_is_no_hang() -> None:
    seen = replace(SERVING, silence=silence_of(1100.0, 4700.0))
    assert readiness(seen, LIMITS, 4700.0).state is ReplicaState.WARM


def test_a_clock_that_was_set_back_does_not_hide_a_hang() -> None:
    silence = silence_of(4700.0, 1100.0, 1104.0, 1108.0, 1112.0, 1116.0)
    verdict = readiness(replace(SERVING, silence=silence), LIMITS, 1116.0)
    assert verdict.state is ReplicaState.DEAD


def test_an_answer_ends_a_silence() -> None:
    silence = silence_of(1100.0, 1104.0, 1108.0).after(True, 1112.0)
    assert silence == Silence()
    assert silence.after(False, 1116.0) == Silence(observes=1, since_s=1116.0)


@given(
    now=st.floats(0, 1e6),
    warm=st.booleans(),
    stopping=st.booleans(),
    ended=st.none() | st.just(ENDED),
    answers=st.lists(st.booleans(), max_size=12),
)
def test_an_engine_is_warm_only_after_an_inference_and_dead_only_for_a_cause(
    now: float, warm: bool, stopping: bool, ended: Failure | None, answers: list[bool]
) -> None:
    silence = Silence()
    for look, answer in enumerate(answers):
        silence = silence.after(answer, 10.0 * look)
    seen = Observation(started_s=0.0, warm=warm, stopping=stopping, ended=ended, silence=silence)
    verdict = readiness(seen, LIMITS, now)
    if verdict.state is ReplicaState.WARM:
        assert warm
        assert ended is None
    assert (verdict.failure is not None) == (verdict.state is ReplicaState.DEAD)
