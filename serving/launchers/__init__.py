"""The places where an engine can run, each behind ``domain.ports.Launcher``."""
