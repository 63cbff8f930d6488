"""The load client: our own, since rehearsing is what Serinus exists for (decision 0007)."""

from canary.loadgen.client import HttpLoadGenerator
from canary.loadgen.process import ProcessLoadGenerator

__all__ = ["HttpLoadGenerator", "ProcessLoadGenerator"]
