"""The load client: our own, since rehearsing is what Serinus exists for (decision 0007)."""

from canary.loadgen.client import HttpLoadGenerator
from canary.loadgen.options import Budget, Options
from canary.loadgen.process import ProcessLoadGenerator
from canary.loadgen.saturation import Limits

__all__ = ["Budget", "HttpLoadGenerator", "Limits", "Options", "ProcessLoadGenerator"]
