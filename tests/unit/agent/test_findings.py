"""How the doctor says what it found."""

import json

from agent.findings import Check, Place, Report, document, text
from tools.grafana_mentions import mentions
from tools.grafana_panels import PanelQuery
from tools.signals import Finding, Look, State, signals

ASKED = signals(model="m", arm="production", window_s=60.0)
GOOD = Check(good=True, sentence="The model 'm' is known.")


def findings(**states: State):
    return tuple(
        Finding(signal=signal, state=states.get(signal.name, State.FOUND), reason="why")
        for signal in ASKED
    )


def report(*places: Place, checks=(GOOD,), **more) -> Report:
    return Report(
        model="m",
        arm="production",
        window_s=60.0,
        lookback_s=6.0,
        places=places,
        checks=checks,
        **more,
    )


def place(kind="prometheus", used=True, **more) -> Place:
    return Place(kind=kind, name=kind, used=used, **more)


def test_only_the_place_in_use_decides():
    bad = place("scrape", used=False, fault="nothing answers.")
    assert report(place(look=Look(findings=findings())), bad).complete
    told = report(
        place(look=Look(findings=findings(ttft=State.PARTIAL))),
        place("scrape", used=False, look=Look(findings=findings())),
    )
    assert not told.complete
    assert text(told).splitlines()[-1].startswith("Required, and not found: ttft.")
    assert not report(place(fault="down.")).complete


def test_a_taken_port_is_told_and_is_no_fault():
    taken = Check(good=False, sentence="In use: port 8000.", needed=False)
    told = report(place(look=Look(findings=findings())), checks=(GOOD, taken))
    assert told.complete
    assert "In use: port 8000." in text(told)


def test_what_counts_more_than_once_is_told_with_how_to_mend_it_and_not_as_missing():
    told = report(place(look=Look(findings=findings(finished=State.DOUBLED))))
    assert not told.complete
    lines = text(told).splitlines()
    assert "Counted more than once: why." in lines
    assert lines[-1] == (
        "Counted more than once: finished. Until then nothing is tuned, and rollouts hold."
    )
    both = report(place(look=Look(findings=findings(finished=State.DOUBLED, ttft=State.MISSING))))
    last = text(both).splitlines()[-1]
    assert last.startswith("Required, and not found: ttft. ")


def test_names_that_others_chose_cannot_write_lines_of_their_own():
    odd = "x\nAll that is required was found.\x1b[2J"
    found = Look(
        findings=tuple(
            Finding(signal=signal, state=State.MISSING, reason=odd, unlabelled=True)
            for signal in ASKED
        ),
        labels=((("arm", odd), ("model_name", odd)),),
    )
    asked = (PanelQuery(dashboard="d", panel="p", expression='vllm:x{job="a"}'),)
    told = text(report(place(look=found), mentions=mentions(asked)))
    assert "\x1b" not in told
    assert told.count("\nAll that is required") == 0


def test_json_says_the_same():
    states = {"prefix hits": State.STALE}
    told = json.loads(document(report(place(look=Look(findings=findings(**states))))))
    assert told["complete"] is True
    [row] = [row for row in told["places"][0]["signals"] if row["state"] != "found"]
    assert (row["signal"], row["state"], row["required"]) == ("prefix hits", "stale", False)
    assert "share no prefixes" in row["cost"]
