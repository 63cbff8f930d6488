"""An engine that two jobs scrape is found, and engines that only look alike are not."""

import pytest

from domain.metrics import Series
from tools.jobs import doubled


def told(*targets: tuple[str, str, str]) -> str:
    """What is said of these targets, by instance, job and replica."""
    return doubled(
        [
            Series(
                labels=(
                    ("finished_reason", reason),
                    ("instance", instance),
                    ("job", job),
                    ("replica", replica),
                ),
                value=1,
            )
            for reason in ("stop", "length")
            for instance, job, replica in targets
        ]
    )


@pytest.mark.parametrize(
    ("one", "other", "engine"),
    [
        (("h:1", "pods", "r0"), ("h:1", "vllm", "r0"), "replica 'r0'"),
        (("h:1", "pods", ""), ("h:1", "vllm", ""), "'h:1'"),
        (("h:1", "pods", ""), ("h:1", "vllm", "r0"), "'h:1'"),
        (("10.0.0.7:1", "pods", "r0"), ("h:1", "vllm", "r0"), "replica 'r0'"),
    ],
)
def test_two_jobs_that_scrape_one_engine_are_named(
    one: tuple[str, str, str], other: tuple[str, str, str], engine: str
):
    assert told(("g:1", "vllm", "r1"), other, one) == (
        f"{engine} is scraped by the jobs 'pods' and 'vllm': name one of them in metric_labels, "
        "such as {job = 'pods'}"
    )


def test_all_jobs_are_named_and_one_without_a_name_is_not_advised():
    said = told(("h:1", "c", ""), ("h:1", "", ""), ("h:1", "b", ""))
    assert "the jobs 'b', 'c' and none:" in said
    assert said.endswith("{job = 'b'}")


@pytest.mark.parametrize(
    "targets",
    [
        [],
        [("h:1", "", "r0"), ("h:2", "", "r1")],
        [("h:1", "vllm", "r0"), ("h:1", "vllm", "r1")],
        [("h:1", "vllm", "r0"), ("h:2", "vllm", "r0")],
        [("h:1", "one", "r0"), ("h:1", "two", "r1")],
        [("h:1", "one", ""), ("h:2", "two", "")],
    ],
)
def test_engines_that_are_several_are_left_alone(targets: list[tuple[str, str, str]]):
    assert told(*targets) == ""


def test_series_that_are_not_told_by_job_say_nothing():
    same = Series(labels=(("instance", "h:1"),), value=1)
    assert doubled([same, same]) == ""
