"""One study from its baseline to its conclusion: LangGraph wires it, stored trials drive it."""

from agent.graph.checkpoints import Checkpoints, checkpoints, forgotten
from agent.graph.conclusion import Conclusion
from agent.graph.cut_off import closed
from agent.graph.rules import ATTEMPTS, CONFIRMATIONS, Look, fidelity
from agent.graph.study_graph import (
    Ask,
    Compare,
    Explain,
    Resolve,
    StudyGraph,
    TrialLog,
    unexplained,
)

__all__ = [
    "ATTEMPTS",
    "CONFIRMATIONS",
    "Ask",
    "Checkpoints",
    "Compare",
    "Conclusion",
    "Explain",
    "Look",
    "Resolve",
    "StudyGraph",
    "TrialLog",
    "checkpoints",
    "closed",
    "fidelity",
    "forgotten",
    "unexplained",
]
