"""Planners: they propose configs from a diagnosis, and hold nothing that changes anything."""
