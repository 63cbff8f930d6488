"""Alembic migrations of Serinus' own tables; applied by ``agent.store.migrate``.

Each release's schema stays reachable by the revisions that led to it: a revision that was released
is never edited. Nothing is imported from here.
"""
