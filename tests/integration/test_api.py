"""The API over a real store: what it says, what it takes, and what it refuses."""

import asyncio
import math
import re
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest

from agent.api import create_app
from agent.live import LiveState
from agent.store import Store, migrate, open_store
from domain.approval import Autonomy, CommandKind
from domain.events import Event, EventKind
from domain.fleet import Replica, ReplicaState, Role, SlotTraffic, Split
from domain.rollout import Phase
from domain.slo import SLO
from domain.study import (
    Block,
    Cost,
    Failure,
    FailureKind,
    LaneBudget,
    StudyState,
    TrialPurpose,
    TrialState,
)
from tests.fakes import records

NOW = 3000.0
DECISION = {"answer": "approve", "digest": records.CANDIDATE.digest, "rollout_version": 1}


class StoppedClock:
    def now(self) -> float:
        return NOW

    async def sleep(self, seconds: float) -> None:
        raise AssertionError(f"The API waited {seconds} s.")


LIVE = LiveState(
    at_s=NOW - 2.0,
    sentence="Waiting for approval.",
    simulated=True,
    paused=False,
    autonomy=Autonomy.APPROVE,
    slo=SLO.parse("ttft<=500ms"),
    active=records.BASELINE,
    split=Split(
        weight=5,
        slots=(
            SlotTraffic(
                slot="production-0",
                role=Role.PRODUCTION,
                admitted=True,
                up=True,
                in_flight=41,
                requests=900,
                errors=2,
            ),
        ),
    ),
    replicas=(
        Replica(
            slot="production-0", config=records.BASELINE, state=ReplicaState.WARM, started_s=1.0
        ),
        Replica(
            slot="canary-0", config=records.CANDIDATE, state=ReplicaState.STARTING, started_s=2.0
        ),
    ),
    shape=records.shape(rate_rps=math.nan),
)


@dataclass
class Api:
    """One API over one store; ``live`` may be replaced."""

    store: Store
    url: str
    live: LiveState = LIVE

    def client(
        self,
        *,
        tokens: dict[str, str] | None = None,
        host: str = "localhost:8400",
        peer: str = "127.0.0.1",
        hosts: tuple[str, ...] = (),
    ) -> httpx.AsyncClient:
        app = create_app(
            store=self.store,
            tokens=tokens or {},
            clock=StoppedClock(),
            live=lambda: self.live,
            hosts=hosts,
        )
        transport = httpx.ASGITransport(app, client=(peer, 50_000), raise_app_exceptions=False)
        return httpx.AsyncClient(transport=transport, base_url=f"http://{host}")


@contextmanager
def store_at(path: Path, **options: Any) -> Iterator[Api]:
    url = f"sqlite:///{path}/serinus.db"
    migrate(url)
    with open_store(url, **options) as store:
        yield Api(store, url)


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    """A finished study, its verdict, and a rollout that waits for an answer."""
    with store_at(tmp_path) as api:
        with api.store.work() as uow:
            lane = LaneBudget(most=Cost(starts=14, seconds=2280.0), run_s=600.0, bounded=True)
            uow.studies.add(records.study(state=StudyState.RECOMMENDED, lane=lane))
            uow.trials.add(
                records.trial(
                    purpose=TrialPurpose.BASELINE,
                    state=TrialState.MEASURED,
                    measurement=records.measurement(),
                    fidelity=records.fidelity(),
                    ended_s=1310.0,
                )
            )
            uow.verdicts.add("study-1", 1900.0, records.verdict())
            uow.rollouts.add(records.rollout())
            uow.verdicts.add("rollout-1", 2500.0, records.verdict(reason="Live."))
            uow.approvals.add(records.request())
            uow.events.add(Event(at_s=2000.0, kind=EventKind.APPROVAL_ASKED, sentence="Asked."))
            uow.events.add(Event(at_s=2001.0, kind=EventKind.HELD, sentence="Held."))
            uow.commit()
        yield api


def answered_by(api: Api) -> str:
    with api.store.view() as uow:
        return uow.approvals.get("approval-1").answered_by


async def test_status_says_what_the_controller_does(api: Api) -> None:
    async with api.client() as client:
        said = (await client.get("/api/status")).json()
    assert said["sentence"] == "Waiting for approval."
    assert (said["weight"], said["simulated"], said["autonomy"]) == (5, True, "approve")
    assert said["active"] == {
        "digest": records.BASELINE.digest,
        "values": {"max_num_seqs": 256},
    }
    production, canary = said["slots"]
    assert (production["state"], production["in_flight"]) == ("warm", 41)
    assert (canary["slot"], canary["state"], canary["in_flight"]) == ("canary-0", "starting", None)
    assert said["shape"]["rate_rps"] is None
    assert said["shape"]["isl"]["mean"] == 500.0


async def test_histories_carry_figures_and_intervals(api: Api) -> None:
    async with api.client() as client:
        (study,) = (await client.get("/api/studies")).json()
        detail = (await client.get("/api/studies/study-1")).json()
        (rollout,) = (await client.get("/api/rollouts")).json()
        moved = (await client.get("/api/rollouts/rollout-1")).json()
    assert detail["study"] == study
    assert study["most"] == {
        "engine_starts": 14,
        "lane_s": 2280.0,
        "words": "14 engine starts, 38 min",
    }
    assert (detail["cost"]["engine_starts"], detail["cost"]["lane_s"]) == (1, 300.0)
    assert detail["trials"][0]["measurement"]["goodput_rps"] == 9.0
    fidelity = detail["fidelity"]
    assert (fidelity["grade"], fidelity["words"]) == ("B", "reproduces production with small gaps")
    assert fidelity["rows"][0]["difference"] == pytest.approx(-0.02)
    assert (fidelity["rows"][1]["live"], fidelity["rows"][1]["agreement"]) == (None, "unknown")
    assert moved["rollout"] == rollout
    assert moved["verdicts"][0]["reason"] == "Live."
    effect = moved["verdicts"][0]["effects"][0]
    assert (effect["metric"], effect["low"], effect["high"], effect["n"]) == (
        "goodput",
        1.31,
        1.52,
        24,
    )


@pytest.fixture
def whole(api: Api) -> Api:
    """The study with a round of fresh runs, a failure with its log, and a search that paid off."""
    better = records.BASELINE.having({"async_scheduling": True})
    cut = tuple(
        Block(seconds=6.0, requests=10, good=9, failed=0, output_tokens=900.0 + n)
        for n in range(20)
    )
    measured = {
        "state": TrialState.MEASURED,
        "measurement": records.measurement(requests=200, blocks=cut),
        "ended_s": 1190.0,
    }
    fresh = (TrialPurpose.CONFIRM, TrialPurpose.CONFIRM_BASELINE)
    with api.store.work() as uow:
        uow.trials.add(records.trial(2, config=better, **measured))
        uow.trials.add(
            records.trial(
                3,
                state=TrialState.FAILED,
                failure=Failure(
                    kind=FailureKind.OUT_OF_MEMORY, sentence="No memory.", log_tail="CUDA oom"
                ),
            )
        )
        for number, purpose in enumerate((*fresh, *reversed(fresh)), start=4):
            config = better if purpose is TrialPurpose.CONFIRM else records.BASELINE
            uow.trials.add(records.trial(number, config=config, purpose=purpose, **measured))
        uow.commit()
    return api


async def test_a_report_holds_all_of_a_study(whole: Api) -> None:
    async with whole.client() as client:
        said = (await client.get("/api/studies/study-1/report")).json()
        detail = (await client.get("/api/studies/study-1")).json()
    assert said["study"] == detail["study"] and said["fidelity"] == detail["fidelity"]
    assert said["decision"]["verdicts"] == detail["verdicts"]
    assert (said["model"], said["simulated"]) == ("demo-hybrid", True)
    assert said["decision"]["recommended"]["values"]["async_scheduling"] is True
    assert said["decision"]["changes"] == [
        {"knob": "async_scheduling", "before": None, "after": True}
    ]
    (finalist,) = said["decision"]["finalists"]
    assert (finalist["trials"], finalist["baseline_trials"]) == ([4, 7], [5, 6])
    assert finalist["effects"][0]["n"] == 4
    assert [run["number"] for run in said["runs"]] == [1, 2, 3, 4, 5, 6, 7]
    assert said["runs"][0]["figures"]["goodput_tok_s"]["low"] is None
    figures = said["runs"][1]["figures"]
    assert figures["output_tok_s"]["value"] == pytest.approx(151.6, rel=0.01)
    assert figures["output_tok_s"]["low"] < 151.6 < figures["output_tok_s"]["high"]
    assert said["runs"][2]["failure"] == {
        "kind": "out_of_memory",
        "sentence": "No memory.",
        "log_tail": "CUDA oom",
    }
    assert [row["trials"] for row in said["front"]] == [[1], [4, 7], [5, 6]]
    assert said["cost"]["starts"] == 7
    assert said["reproduction"]["serve"].startswith("vllm serve MODEL ")
    assert said["switches"] == []


async def test_a_report_of_no_study_is_not_found(api: Api) -> None:
    async with api.client() as client:
        for path in ("/api/studies/none/report", "/studies/none/report"):
            missing = await client.get(path)
            assert missing.status_code == 404
            assert missing.json()["sentence"] == "There is no study 'none'."


async def test_the_report_page_stands_alone(whole: Api) -> None:
    async with whole.client() as client:
        page = await client.get("/studies/study-1/report")
        dashboard = (await client.get("/")).text
    assert 'href="/studies/study-1/report"' in dashboard
    for shown in (
        "simulated engines",
        "vllm serve MODEL --served-model-name demo-hybrid --async-scheduling --max-num-seqs 256",
        "Goodput rose and no limit was crossed.",
        "n = 24, block bootstrap",
        "Trials 4, 7 against 5, 6.",
        "moderated t on logarithms of 2 + 2 runs",
        "Kept is what no other config beats",
        "No two measured trials differ in one switch alone.",
        "CUDA oom",
        "The rehearsal reproduces production with small gaps.",
        "7 engine starts",
        "serinus tune --config study.toml",
    ):
        assert shown in page.text, shown
    assert not re.search(r"https?:|url\(|@import|<script|<link|<img| src=| style=", page.text)
    (style,) = re.findall(r"<style>(.*?)</style>", page.text, re.DOTALL)
    allowed = b64encode(sha256(style.encode()).digest()).decode()
    policy = page.headers["content-security-policy"]
    assert f"default-src 'none'; style-src 'sha256-{allowed}'" in policy
    assert "prefers-color-scheme: dark" in style
    assert page.headers["cache-control"] == "no-store"
    unscoped = re.findall(r"<th\b(?![^>]*scope=)[^>]*>", page.text)
    assert unscoped == [], "Every heading says whether it is of a row or of a column."


@pytest.mark.parametrize("state", StudyState)
async def test_a_study_without_trials_has_a_report(tmp_path: Path, state: StudyState) -> None:
    with store_at(tmp_path) as api:
        with api.store.work() as uow:
            uow.studies.add(records.study(state=state, conclusion="The baseline failed."))
            uow.commit()
        async with api.client() as client:
            said = (await client.get("/api/studies/study-1/report")).json()
            page = (await client.get("/studies/study-1/report")).text
    assert (said["decision"]["recommended"], said["runs"], said["front"]) == (None, [], [])
    for shown in ("No trial has begun.", "No config was measured.", "0 engine starts"):
        assert shown in page, shown


async def test_a_report_escapes_what_comes_from_outside(whole: Api) -> None:
    hostile = "</style><script>alert(1)</script>\"'><img src=x>"
    config = records.BASELINE.having({"speculative_method": "eagle3", "speculative_model": hostile})
    failure = Failure(kind=FailureKind.DIED, sentence=hostile, log_tail=hostile)
    with whole.store.work() as uow:
        uow.studies.save(
            records.study(
                state=StudyState.RECOMMENDED,
                reason=hostile,
                conclusion=hostile,
                shape=records.shape(model=hostile),
            )
        )
        uow.trials.add(
            records.trial(
                8,
                config=config,
                purpose=TrialPurpose.CONFIRM,
                hypothesis=hostile,
                state=TrialState.FAILED,
                failure=failure,
            )
        )
        uow.commit()
    async with whole.client() as client:
        page = (await client.get("/studies/study-1/report")).text
    assert "<script" not in page and "<img" not in page and page.count("</style>") == 1
    assert page.count("&lt;script&gt;alert(1)") >= 8


async def test_a_report_wants_a_person_to_sign_in(api: Api) -> None:
    async with api.client(tokens={"secret": "ada"}) as client:
        away = await client.get("/studies/study-1/report")
        assert (away.status_code, away.headers["location"]) == (303, "/login")
        assert (await client.get("/api/studies/study-1/report")).status_code == 401


async def test_events_newest_first_and_by_kind(api: Api) -> None:
    async with api.client() as client:
        everything = (await client.get("/api/events")).json()
        held = (await client.get("/api/events", params={"kind": "held"})).json()
        wrong = await client.get("/api/events", params={"limit": 0})
    assert [event["sentence"] for event in everything] == ["Held.", "Asked."]
    assert [event["sentence"] for event in held] == ["Held."]
    assert wrong.status_code == 422 and "limit" in wrong.json()["sentence"]


async def test_an_open_approval_carries_its_evidence(api: Api) -> None:
    async with api.client() as client:
        (open_one,) = (await client.get("/api/approvals")).json()
    assert open_one["approval"]["digest"] == records.CANDIDATE.digest
    assert open_one["verdict"]["effects"][0]["estimate"] == 1.41
    assert open_one["rollout"]["changes"][1] == {
        "knob": "max_num_seqs",
        "before": 256,
        "after": 512,
    }


@pytest.mark.parametrize("form", ["json", "data"])
async def test_an_answer_is_taken_once(api: Api, form: str) -> None:
    async with api.client() as client:
        first = await client.post("/api/approvals/approval-1", **{form: DECISION})
        again = await client.post("/api/approvals/approval-1", json=DECISION)
        still_open = (await client.get("/api/approvals")).json()
    assert (first.status_code, first.json()["answer"]) == (200, "approve")
    assert again.status_code == 409
    assert again.json() == {
        "error": "conflict",
        "sentence": "The request was already approved by local.",
    }
    assert still_open == []


async def test_approve_and_reject_at_once_give_one_winner(api: Api) -> None:
    tokens = {"token-a": "ada", "token-b": "bob"}
    async with api.client(tokens=tokens) as client:
        results = await asyncio.gather(
            *(
                client.post(
                    "/api/approvals/approval-1",
                    json=DECISION | {"answer": answer},
                    headers={"Authorization": f"Bearer {token}"},
                )
                for token, answer in (("token-a", "approve"), ("token-b", "reject"))
            )
        )
    assert sorted(result.status_code for result in results) == [200, 409]
    (winner,) = (result.json() for result in results if result.status_code == 200)
    assert answered_by(api) == winner["answered_by"]


@pytest.mark.parametrize(
    "change", [{"digest": "0123456789ab"}, {"rollout_version": 2}], ids=["digest", "version"]
)
async def test_an_answer_to_another_question_is_a_conflict(
    api: Api, change: dict[str, object]
) -> None:
    async with api.client() as client:
        refused = await client.post("/api/approvals/approval-1", json=DECISION | change)
    assert refused.status_code == 409
    assert answered_by(api) == ""


async def test_a_question_about_an_older_version_is_closed(api: Api) -> None:
    with api.store.work() as uow:
        uow.rollouts.save(replace(records.rollout(), paused=True))
        uow.commit()
    async with api.client() as client:
        assert (await client.get("/api/approvals")).json() == []
        refused = await client.post("/api/approvals/approval-1", json=DECISION)
    assert refused.status_code == 409 and "has changed" in refused.json()["sentence"]


async def test_an_expired_question_says_so(api: Api) -> None:
    with api.store.work() as uow:
        uow.approvals.add(records.request(id="old", expires_s=NOW))
        uow.commit()
    async with api.client() as client:
        refused = await client.post("/api/approvals/old", json=DECISION)
        listed = (await client.get("/api/approvals")).json()
    assert refused.status_code == 409 and "expired" in refused.json()["sentence"]
    assert [one["approval"]["id"] for one in listed] == ["approval-1"]


@pytest.mark.parametrize(
    ("sent", "status", "named"),
    [
        ({"json": DECISION | {"force": True}}, 422, "force"),
        ({"json": DECISION | {"answer": "maybe"}}, 422, "answer"),
        ({"json": {"answer": "approve"}}, 422, "digest"),
        ({"content": b"not json", "headers": {"Content-Type": "application/json"}}, 422, "JSON"),
        (
            {"content": b"\xff", "headers": {"Content-Type": "application/x-www-form-urlencoded"}},
            422,
            "UTF-8",
        ),
        ({"content": b"<a/>", "headers": {"Content-Type": "text/xml"}}, 415, "application/json"),
        ({"json": DECISION | {"digest": "x" * 20_000}}, 413, "longer than"),
    ],
    ids=["unknown field", "unknown answer", "missing", "no json", "no utf-8", "xml", "too long"],
)
async def test_a_body_that_is_no_answer_is_refused(
    api: Api, sent: dict[str, Any], status: int, named: str
) -> None:
    async with api.client() as client:
        refused = await client.post("/api/approvals/approval-1", **sent)
    assert refused.status_code == status
    assert named in refused.json()["sentence"]
    assert answered_by(api) == ""


async def test_a_command_given_twice_is_pending_once(api: Api) -> None:
    async with api.client() as client:
        first = await client.post("/api/commands", json={"kind": "pause"})
        again = await client.post("/api/commands", data={"kind": "pause"})
        other = await client.post("/api/commands", json={"kind": "tune"})
        wrong = await client.post("/api/commands", json={"kind": "explode"})
    assert (first.status_code, other.status_code, wrong.status_code) == (202, 202, 422)
    assert again.json() == first.json()
    with api.store.view() as uow:
        kinds = sorted(command.kind.value for command in uow.commands.pending())
    assert kinds == ["pause", "tune"]


async def test_an_order_for_a_rollout_is_bound_to_its_id(api: Api) -> None:
    rollback = {"kind": "rollout_rollback", "rollout_id": "rollout-1"}
    async with api.client() as client:
        first = await client.post("/api/commands", json=rollback)
        again = await client.post("/api/commands", data=rollback)
        unnamed = await client.post("/api/commands", json={"kind": "rollout_rollback"})
        unknown = await client.post("/api/commands", json=rollback | {"rollout_id": "none"})
        named = await client.post("/api/commands", json=rollback | {"kind": "tune"})
        old = await client.post("/api/commands", json={"kind": "rollback"})
    assert (first.status_code, first.json()["rollout_id"]) == (202, "rollout-1")
    assert again.json() == first.json()
    assert (unnamed.status_code, unnamed.json()["sentence"]) == (
        422,
        "rollout_rollback is an order for one rollout; give its id as rollout_id.",
    )
    assert (unknown.status_code, unknown.json()["sentence"]) == (
        404,
        "There is no rollout 'none'.",
    )
    assert (named.status_code, named.json()["sentence"]) == (
        422,
        "tune is no order for one rollout; leave rollout_id out.",
    )
    assert old.status_code == 422
    with api.store.view() as uow:
        (pending,) = uow.commands.pending()
    assert (pending.kind, pending.rollout_id) == (CommandKind.ROLLOUT_ROLLBACK, "rollout-1")


@pytest.mark.parametrize("path", ["/api/studies/x", "/api/rollouts/x", "/api/nowhere", "/none"])
async def test_what_is_not_there_is_404_with_a_sentence(api: Api, path: str) -> None:
    async with api.client() as client:
        missing = await client.get(path)
        unknown = await client.post("/api/approvals/x", json=DECISION)
    assert missing.status_code == unknown.status_code == 404
    assert missing.json()["sentence"].endswith(".")


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8400", "localhost.evil.example"])
async def test_a_foreign_host_name_is_refused(api: Api, host: str) -> None:
    async with api.client(host=host) as client:
        for path in ("/", "/api/status", "/healthz", "/static/serinus.js"):
            refused = await client.get(path)
            assert (refused.status_code, refused.json()["error"]) == (403, "forbidden")


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:8400", "[::1]:8400", "gpu.example:80"])
async def test_own_host_names_are_answered(api: Api, host: str) -> None:
    async with api.client(host=host, hosts=("gpu.example",)) as client:
        assert (await client.get("/healthz")).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "http://localhost:9999"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
    ids=str,
)
async def test_a_change_from_a_foreign_page_is_refused(api: Api, headers: dict[str, str]) -> None:
    async with api.client() as client:
        for path, body in (("/api/approvals/approval-1", DECISION), ("/api/commands", {})):
            refused = await client.post(path, data=body | {"kind": "tune"}, headers=headers)
            assert refused.status_code == 403
    assert answered_by(api) == ""


async def test_a_change_from_the_own_page_is_taken(api: Api) -> None:
    headers = {"Origin": "http://localhost:8400", "Sec-Fetch-Site": "same-origin"}
    async with api.client() as client:
        taken = await client.post("/api/approvals/approval-1", data=DECISION, headers=headers)
    assert taken.status_code == 200


async def test_without_tokens_this_machine_alone_is_answered(api: Api) -> None:
    async with api.client(peer="192.0.2.7") as client:
        assert (await client.get("/api/status")).status_code == 403
        assert (await client.post("/api/commands", json={"kind": "tune"})).status_code == 403
        assert (await client.get("/")).status_code == 403
        assert (await client.get("/healthz")).status_code == 200


async def test_with_tokens_the_actor_is_the_tokens_owner(api: Api) -> None:
    async with api.client(tokens={"secret": "ada"}, peer="192.0.2.7") as client:
        for headers in ({}, {"Authorization": "Bearer guess"}, {"Authorization": "Basic secret"}):
            refused = await client.post("/api/approvals/approval-1", json=DECISION, headers=headers)
            assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
        taken = await client.post(
            "/api/approvals/approval-1", json=DECISION, headers={"Authorization": "Bearer secret"}
        )
    assert taken.status_code == 200
    assert answered_by(api) == "ada"


async def test_a_person_signs_in_with_a_token(api: Api) -> None:
    async with api.client(tokens={"secret": "ada"}) as client:
        away = await client.get("/")
        assert (away.status_code, away.headers["location"]) == (303, "/login")
        assert (await client.get("/fragment")).status_code == 401
        wrong = await client.post("/login", data={"token": "guess"})
        assert wrong.status_code == 401 and "not known" in wrong.text
        right = await client.post("/login", data={"token": "secret"})
        assert (right.status_code, right.headers["location"]) == (303, "/")
        cookie = right.headers["set-cookie"].lower()
        assert "httponly" in cookie and "samesite=strict" in cookie
        page = await client.get("/")
    assert page.status_code == 200 and "ada" in page.text and "secret" not in page.text


async def test_the_page_shows_the_question_with_its_evidence(api: Api) -> None:
    async with api.client() as client:
        page = (await client.get("/")).text
    for shown in (
        "Waiting for approval.",
        "simulated engines",
        "Approve",
        "Reject",
        "max_num_seqs",
        "1.31 to 1.52 at 95 %, n = 24",
        "1\u202f180 baseline and 1\u202f204 candidate requests",
        'name="rollout_version" value="1"',
        "candidate 5 %",
        "Held.",
        "The rehearsal reproduces production with small gaps.",
        "Close: 1 of 2 figures.",
        "It cost 1 engine start, 5 min of the canary lane so far; at most 14 engine starts, 38 min",
    ):
        assert shown in page, shown


@pytest.mark.parametrize(
    ("replicas", "told"),
    [
        (1, "one engine restarts, and until it is warm no request is answered"),
        (3, "each of 3 replicas restarts in turn"),
    ],
)
async def test_a_rollout_in_place_says_what_it_takes_before_it_is_approved(
    tmp_path: Path, replicas: int, told: str
) -> None:
    plan = replace(records.rollout().plan, steps=(), in_place=True, replicas=replicas)
    with store_at(tmp_path) as api:
        with api.store.work() as uow:
            uow.studies.add(records.study(replicas=replicas))
            uow.rollouts.add(records.rollout(plan=plan))
            uow.approvals.add(records.request())
            uow.commit()
        async with api.client() as client:
            page = (await client.get("/")).text
    for shown in (told, "In place: production restarts", "Nothing is judged under live traffic."):
        assert shown in page, shown
    assert ("one of 3 replicas at a time" in page) is (replicas == 3)
    assert ("at what one of 3 replicas gets" in page) is (replicas == 3)


@pytest.mark.parametrize(
    ("changes", "orders"),
    [
        ({}, ["rollout_rollback"]),
        ({"phase": Phase.PROGRESSING}, ["rollout_pause", "rollout_rollback"]),
        ({"phase": Phase.PROGRESSING, "paused": True}, ["rollout_resume", "rollout_rollback"]),
        ({"phase": Phase.PROMOTED}, ["rollout_rollback"]),
        ({"phase": Phase.PROMOTED, "candidate": records.BASELINE}, []),
        ({"phase": Phase.ROLLING_BACK}, []),
        ({"phase": Phase.ROLLED_BACK}, []),
        ({"phase": Phase.REJECTED}, []),
    ],
)
async def test_the_buttons_of_a_rollout_are_bound_to_it(
    api: Api, changes: dict[str, Any], orders: list[str]
) -> None:
    api.live = replace(LIVE, active=records.CANDIDATE)
    with api.store.work() as uow:
        uow.rollouts.save(replace(records.rollout(), stalled=True, **changes))
        uow.commit()
    async with api.client() as client:
        page = (await client.get("/fragment")).text
        shown = (await client.get("/api/rollouts/rollout-1")).json()["rollout"]
    bound = '<input type="hidden" name="rollout_id" value="rollout-1">'
    forms = [form for form in page.split("<form") if bound in form]
    assert [re.findall('name="kind" value="(\\w+)"', form) for form in forms] == [
        [order] for order in orders
    ]
    assert shown["stalled"] is True
    assert (shown["promoted_s"], 'inconclusive">stalled' in page) == (None, True)


async def test_the_page_of_an_empty_store_says_so(tmp_path: Path) -> None:
    with store_at(tmp_path) as api:
        api.live = replace(LIVE, simulated=False, split=None, replicas=(), shape=None, at_s=2900.0)
        async with api.client() as client:
            page = (await client.get("/")).text
    for shown in ("No study yet.", "No traffic data.", "could not be read", "silent for 100 s"):
        assert shown in page, shown
    assert "simulated" not in page and "Approve" not in page


async def test_text_from_outside_is_escaped(api: Api) -> None:
    hostile = "<script>alert(1)</script>\"'><img src=x>"
    with api.store.work() as uow:
        uow.trials.add(records.trial(2, hypothesis=hostile))
        uow.events.add(Event(at_s=1.0, kind=EventKind.HELD, sentence=hostile))
        uow.studies.save(records.study(reason=hostile))
        uow.commit()
    api.live = replace(LIVE, sentence=hostile)
    async with api.client() as client:
        for path in ("/", "/fragment"):
            page = (await client.get(path)).text
            assert "<script>alert" not in page and "<img src=x" not in page
            assert page.count("&lt;script&gt;alert(1)") == 4


async def test_pages_load_nothing_from_elsewhere(api: Api) -> None:
    async with api.client() as client:
        page = await client.get("/")
        assert "default-src 'self'" in page.headers["content-security-policy"]
        assert page.headers["cache-control"] == "no-store"
        for path in ("/", "/login", "/static/serinus.css", "/static/serinus.js"):
            text = (await client.get(path)).text
            assert "http://" not in text and "https://" not in text
            assert "style=" not in text and "onclick" not in text


async def test_a_locked_database_asks_to_come_again(tmp_path: Path) -> None:
    with (
        store_at(tmp_path, busy_timeout_s=0.05) as api,
        open_store(api.url) as other,
        other.work() as holder,
    ):
        holder.state.set("key", 1)
        async with api.client() as client:
            later = await client.post("/api/commands", json={"kind": "tune"})
            reading = await client.get("/api/events")
    assert (later.status_code, later.headers["retry-after"]) == (503, "1")
    assert "locked" in later.json()["sentence"]
    assert reading.status_code == 200


async def test_a_fault_says_nothing_of_the_inside(api: Api) -> None:
    class Broken(Exception):
        pass

    def fail() -> LiveState:
        raise Broken("secret detail")

    app = create_app(store=api.store, tokens={}, clock=StoppedClock(), live=fail)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        failed = await client.get("/api/status")
    assert failed.status_code == 500
    assert "secret" not in failed.text and failed.json()["error"] == "fault"


async def test_the_schema_describes_every_body_and_resolves(api: Api) -> None:
    async with api.client() as client:
        schema = (await client.get("/api/openapi.json")).json()

    def references(node: object) -> Iterator[str]:
        if isinstance(node, dict):
            if isinstance(node.get("$ref"), str):
                yield node["$ref"]
            for value in node.values():
                yield from references(value)
        elif isinstance(node, list):
            for value in node:
                yield from references(value)

    for reference in references(schema):
        place: Any = schema
        for key in reference.removeprefix("#/").split("/"):
            place = place[key]
    body = schema["paths"]["/api/commands"]["post"]["requestBody"]["content"]["application/json"]
    assert body["schema"]["properties"]["kind"]["enum"] == [kind.value for kind in CommandKind]
    assert body["schema"]["additionalProperties"] is False
    assert "HTTPValidationError" not in str(schema)
    assert set(schema["paths"]) == {
        "/api/status",
        "/api/studies",
        "/api/studies/{study_id}",
        "/api/studies/{study_id}/report",
        "/api/rollouts",
        "/api/rollouts/{rollout_id}",
        "/api/events",
        "/api/approvals",
        "/api/approvals/{request_id}",
        "/api/commands",
        "/healthz",
    }
