"""Which metrics and label matchers stand in PromQL that other people wrote."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tools.promql import promql
from tools.queries import METRICS, RUNNING, TTFT, buckets, where
from tools.selectors import Match, Matcher, Selector, selectors


def found(expression):
    return selectors(expression, {"a", "b", "vllm:x_bucket"})


def matcher(label, match, value):
    return Matcher(label=label, match=Match(match), value=value)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("a", [Selector(metric="a")]),
        ("sum by (job) (rate(a[5m])) / b > 1", [Selector(metric="a"), Selector(metric="b")]),
        (
            'a{job="vllm-prod",cluster=~"eu|us", x!="y" , z!~"q.*",}',
            [
                Selector(
                    metric="a",
                    matchers=(
                        matcher("job", "=", "vllm-prod"),
                        matcher("cluster", "=~", "eu|us"),
                        matcher("x", "!=", "y"),
                        matcher("z", "!~", "q.*"),
                    ),
                )
            ],
        ),
        ("a {} offset 5m", [Selector(metric="a")]),
        (
            "histogram_quantile(0.9, sum by(le) (rate(vllm:x_bucket{m='n'}[$__rate_interval])))",
            [Selector(metric="vllm:x_bucket", matchers=(matcher("m", "=", "n"),))],
        ),
        ('{__name__="a", job="j"}', [Selector(metric="a", matchers=(matcher("job", "=", "j"),))]),
        ('{"a", "job"="j"}', [Selector(metric="a", matchers=(matcher("job", "=", "j"),))]),
        (r'a{x="q\"}{\\n"}', [Selector(metric="a", matchers=(matcher("x", "=", 'q"}{\\n'),))]),
        (r"a{x=`\d`}", [Selector(metric="a", matchers=(matcher("x", "=", r"\d"),))]),
        ('a{x="$"}', [Selector(metric="a", matchers=(matcher("x", "=", "$"),))]),
        ('"a" + label_replace(c, "a", "b")', []),
        ("# a\nb", [Selector(metric="b")]),
        ("prefix_a + a_total + a:b", []),
        ('a{job="j"', [Selector(metric="a", matchers=(matcher("job", "=", "j"),))]),
        ("", []),
    ],
)
def test_selectors_are_found_with_their_matchers(expression, expected):
    assert list(found(expression)) == expected


@pytest.mark.parametrize("variable", ["$job", "${job:regex}", "[[job]]", "[[job:pipe]]", "x-$job"])
def test_what_hangs_on_a_template_variable_is_dropped_and_counted(variable):
    asked = f'a{{job=~"{variable}",cluster="eu"}}'
    assert found(asked) == (
        Selector(metric="a", matchers=(matcher("cluster", "=", "eu"),), dropped=1),
    )


def test_a_variable_in_place_of_a_matcher_or_a_metric_is_dropped():
    assert found("a{$filters, x='y'}") == (
        Selector(metric="a", matchers=(matcher("x", "=", "y"),), dropped=1),
    )
    assert found("$a + ${a} + [[a]]") == ()


@pytest.mark.parametrize(
    ("match", "value", "fixed"),
    [
        ("=", "vllm.prod", "vllm.prod"),
        ("=~", "vllm-prod/eu", "vllm-prod/eu"),
        ("=~", "vllm.prod", None),
        ("=~", "a|b", None),
        ("!=", "a", None),
        ("!~", "a", None),
        ("=", "", None),
    ],
)
def test_only_one_possible_value_is_fixed(match, value, fixed):
    assert matcher("job", match, value).fixed == fixed


@settings(deadline=None)
@given(st.text(max_size=40), st.text(max_size=40))
def test_what_serinus_writes_itself_is_read_back(arm, model):
    query = buckets(TTFT, 60.0, where(arm=arm, model_name=model))
    seen = selectors(promql(query), METRICS)
    assert len(seen) == 2
    for selector in seen:
        assert selector.metric == TTFT.bucket
        kept = {one.label: one.value for one in selector.matchers}
        expected = {"arm": arm, "model_name": model}
        assert kept.items() <= expected.items()
        assert len(kept) + selector.dropped == 2


@settings(deadline=None)
@given(st.text(alphabet="a{}[]()\"'`=~!,\\$# \nvllm:num_requests_running", max_size=60))
def test_no_text_is_too_odd(text):
    for selector in selectors(text, {"a", RUNNING}):
        assert selector.metric in {"a", RUNNING}
