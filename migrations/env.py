"""Runs the revisions on the connection that ``agent.store.schema`` hands over, and on no other.

The caller owns the transaction, so that an upgrade happens as a whole or not at all.
"""

from alembic import context

from agent.store.models import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    render_as_batch=True,
    transactional_ddl=True,
)
context.run_migrations()
