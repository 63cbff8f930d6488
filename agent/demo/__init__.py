"""The demo: the real controller on simulated engines under live traffic, and its report."""
