"""The accuracy guard: does a config that may change answers still answer as well as production?

A lossy config is never recommended unless ``judge_quality`` passes it. Questions come from a
generator. Only ``ask_all`` talks to an engine; it judges nothing, and an engine that does not
answer is an error there, not a wrong answer.
"""

from __future__ import annotations

import asyncio
import math
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import httpx

from canary.finding import Finding
from canary.intervals import proportion_difference_interval
from domain.errors import EngineUnreachable
from domain.interval import Interval
from domain.study import QualityScore
from domain.verdict import Effect, Evidence, Outcome, Verdict

# Room to reason aloud: errors of a coarse cache grow with the length of the answer.
MAX_TOKENS = 64
# Below this accuracy of the baseline a ruined candidate could look its equal.
LEAST_BASELINE = 0.2
MOST_QUESTIONS = 20_000
STREAMS = 32
"""Questions that are asked of an engine at once."""
ANSWER_S = 60.0
"""The longest that one answer may take."""
_ANSWER = re.compile(r"Answer:\s*\**\s*(-?\d[\d,]*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A prompt that asks for an ending ``Answer: <integer>``, and the integer that is right."""

    prompt: str
    answer: int


def questions(seed: int, n: int) -> tuple[Question, ...]:
    """``n`` sums of three to six integers below 100; the same seed gives the same questions."""
    draw = random.Random(seed)
    return tuple(_sum(draw) for _ in range(n))


def _sum(draw: random.Random) -> Question:
    text = str(draw.randint(1, 99))
    answer = int(text)
    for _ in range(draw.randint(2, 5)):
        sign, term = draw.choice((1, -1)), draw.randint(1, 99)
        text += f" {'+' if sign > 0 else '-'} {term}"
        answer += sign * term
    return Question(prompt=f'Compute {text}. End with "Answer: N".', answer=answer)


def score(question: Question, text: str) -> bool:
    """Whether the last ``Answer: <integer>`` of ``text`` is right; none is wrong."""
    answers = _ANSWER.findall(text)
    return bool(answers) and int(answers[-1].replace(",", "")) == question.answer


def judge_quality(
    candidate: QualityScore, baseline: QualityScore, margin: float = 0.03, level: float = 0.95
) -> Verdict:
    """Non-inferiority: PASS if the difference's interval lies wholly above −``margin``.

    FAIL if it lies wholly below zero and is no PASS; INCONCLUSIVE between, most often for want of
    questions: at 90 % right some 770 a side are needed to show three points. A baseline that gets
    less than a fifth right proves nothing either.
    """
    evidence = Evidence(
        baseline_n=baseline.asked, candidate_n=candidate.asked, start_s=0.0, end_s=0.0
    )
    if not candidate.asked or not baseline.asked:
        reason = "The evaluation set has not been asked of both arms."
        return Verdict(outcome=Outcome.INCONCLUSIVE, reason=reason, evidence=evidence)
    ours, theirs = candidate.right / candidate.asked, baseline.right / baseline.asked
    interval = proportion_difference_interval(
        candidate.right, candidate.asked, baseline.right, baseline.asked, level=level
    )
    effect = Effect(
        metric="accuracy",
        baseline=theirs,
        candidate=ours,
        estimate=ours - theirs,
        unit="difference",
        interval=interval,
    )
    shown = (
        f"{candidate.right} of {candidate.asked} answers are right against {baseline.right} of"
        f" {baseline.asked}: {100 * (ours - theirs):+.1f} points ({100 * level:.3g} % interval"
        f" {100 * interval.low:+.1f} to {100 * interval.high:+.1f})"
    )
    found = _accuracy(ours, theirs, interval, margin)
    return Verdict(
        outcome=found.outcome,
        reason=f"{shown}, {found.sentence}.",
        effects=(effect,),
        evidence=evidence,
    )


def _accuracy(ours: float, theirs: float, interval: Interval, margin: float) -> Finding:
    points = f"{100 * margin:g} points"
    if theirs < LEAST_BASELINE:
        return Finding(Outcome.INCONCLUSIVE, "too few for a loss to show; use easier questions")
    if interval.low > -margin:
        return Finding(Outcome.PASS, f"no loss of {points} or more")
    if interval.high < 0:
        return Finding(Outcome.FAIL, "a proven loss")
    needed = questions_needed(ours, theirs, margin, interval.level)
    ending = f"; that would take about {needed} questions a side" if needed is not None else ""
    return Finding(Outcome.INCONCLUSIVE, f"a loss of {points} is not ruled out{ending}")


def questions_needed(ours: float, theirs: float, margin: float, level: float) -> int | None:
    """Questions a side to show a loss below ``margin`` if the accuracies are as given (0–1);
    ``None`` where they are more than anybody would ask."""
    room = ours - theirs + margin
    z = NormalDist().inv_cdf(0.5 + level / 2)
    spread = z * z * (ours * (1 - ours) + theirs * (1 - theirs))
    if room <= 0 or spread > MOST_QUESTIONS * room**2:
        return None
    return math.ceil(spread / room**2)


def longest_s(n: int) -> float:
    """The longest that ``n`` questions may take, each answer coming at the last moment."""
    return math.ceil(n / STREAMS) * ANSWER_S


async def ask_all(
    url: str,
    model: str,
    asked: Sequence[Question],
    *,
    concurrency: int = 8,
    timeout_s: float = ANSWER_S,
    transport: httpx.AsyncBaseTransport | None = None,
) -> QualityScore:
    """Ask the engine at ``url`` every question at temperature 0 and count the right answers.

    ``timeout_s`` bounds one answer. Raises EngineUnreachable as soon as one question got no
    answer: a score over fewer questions would flatter the engine. ``transport`` replaces the
    network.
    """
    gate = asyncio.Semaphore(concurrency)
    # The engine is ours and local: a proxy named in the environment must not stand between.
    async with httpx.AsyncClient(
        base_url=url, timeout=timeout_s, trust_env=False, transport=transport
    ) as client:

        async def right(question: Question) -> bool:
            async with gate:
                return score(question, await _answer(client, model, question))

        asking = [asyncio.create_task(right(question)) for question in asked]
        try:
            rights = await asyncio.gather(*asking)
        finally:
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
    return QualityScore(right=sum(rights), asked=len(asked))


async def _answer(client: httpx.AsyncClient, model: str, question: Question) -> str:
    body = {
        "model": model,
        "messages": [{"role": "user", "content": question.prompt}],
        "max_tokens": MAX_TOKENS,
        "temperature": 0,
    }
    try:
        response = await client.post("/v1/chat/completions", json=body)
        response.raise_for_status()
        content = response.json()["choices"][0]["message"]["content"]
    except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
        said = str(error) or type(error).__name__
        raise EngineUnreachable(
            f"A question of the evaluation set got no answer: {said}"
        ) from error
    return content if isinstance(content, str) else ""
