"""Traces of real requests: read, written, and summed up. Pure; callers open the files."""

from canary.traces.formats import FORMATS, TraceFormat, format_of, read_trace, write_trace
from canary.traces.prefixes import ideal_reuse, with_sessions
from canary.traces.shape import length_correlation, shape_of

__all__ = [
    "FORMATS",
    "TraceFormat",
    "format_of",
    "ideal_reuse",
    "length_correlation",
    "read_trace",
    "shape_of",
    "with_sessions",
    "write_trace",
]
