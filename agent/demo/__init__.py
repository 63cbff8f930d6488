"""The demo: the real controller under live traffic, and its report."""
