"""Where a catalogue and an installed vLLM disagree."""

import pytest

from domain.engine import Place
from serving.drift import Difference, Finding, Installed, Option, Unnamed, drift, unnamed
from serving.flags import CatalogueKnob


def knob(name="block_size", place=Place.FLAG, domain=(16, 32), default=16, **rest):
    return CatalogueKnob(name=name, place=place, domain=domain, default=default, **rest)


def option(flag="--block-size", choices=(), default=None, **rest):
    row = {"group": "CacheConfig", "kind": "int", "about": "Tokens of a block", **rest}
    return Option(flags=(flag,), choices=choices, default=default, **row)


def vllm(*options, speculative=None, paths=("s.method",), variables=()):
    return Installed("0.33.0", options, speculative or {}, frozenset(paths), frozenset(variables))


DRAFTS = knob(
    "drafts", Place.SPECULATIVE, ("none", "mtp"), "none", unset="none", resolved="s.method"
)
BIND = knob("VLLM_CPU_BIND", Place.ENVIRONMENT, ("auto",), "auto")


@pytest.mark.parametrize(
    "known, installed",
    [
        (knob(), vllm(option())),
        (knob(), vllm(option(choices=(8, 16, 32), default=16))),
        (knob(domain=("auto", 16), default="auto", unset="auto"), vllm(option(choices=(16,)))),
        (knob(domain=(16, "$all")), vllm(option(choices=(16,)))),
        (DRAFTS, vllm(speculative={"method": ("mtp", "ngram")})),
        (BIND, vllm(variables={"VLLM_CPU_BIND"})),
        (knob("OMP_NUM_THREADS", Place.ENVIRONMENT), vllm()),
    ],
    ids=["free", "choices", "unset", "fact", "drafts", "variable", "not vLLM's own"],
)
def test_where_they_agree_there_is_no_drift(known, installed):
    assert drift([known], installed) == ()


@pytest.mark.parametrize(
    "known, installed, difference, sentence",
    [
        (knob(), vllm(), Difference.GONE, "block_size is gone: vllm serve has no --block-size."),
        (
            knob(),
            vllm(option(choices=(16, 64))),
            Difference.VALUE_GONE,
            "block_size=32 is gone: vLLM takes 16, 64.",
        ),
        (
            knob(),
            vllm(option(default=32)),
            Difference.DEFAULT_CHANGED,
            "block_size: vLLM's default is 32, the catalogue's 16.",
        ),
        (
            DRAFTS,
            vllm(speculative={"model": ()}),
            Difference.GONE,
            "drafts is gone: the speculative config has no field method.",
        ),
        (
            DRAFTS,
            vllm(speculative={"method": ("eagle",)}),
            Difference.VALUE_GONE,
            "drafts=mtp is gone: vLLM takes eagle.",
        ),
        (
            DRAFTS,
            vllm(speculative={"method": ("mtp",)}, paths=()),
            Difference.PATH_GONE,
            "drafts: vLLM's resolved config has no s.method.",
        ),
        (
            BIND,
            vllm(),
            Difference.GONE,
            "VLLM_CPU_BIND is gone: vLLM reads no such environment variable.",
        ),
    ],
)
def test_each_disagreement_is_one_sentence(known, installed, difference, sentence):
    assert drift([known], installed) == (Finding(known.name, difference, sentence),)


def test_a_knob_given_once_a_hardware_is_told_once():
    assert len(drift([knob(), knob(domain=(16, 128))], vllm())) == 1


def test_what_the_catalogue_does_not_name_is_listed_with_its_group():
    installed = vllm(
        option(choices=(16, 32, 64)),
        option("--new", about="A thing", group="SchedulerConfig"),
        option("--speculative-config"),
    )
    assert unnamed([knob(), DRAFTS], installed) == (
        Unnamed("--block-size", "CacheConfig", "Tokens of a block", (64,)),
        Unnamed("--new", "SchedulerConfig", "A thing"),
    )
