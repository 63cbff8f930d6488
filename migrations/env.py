"""Runs the revisions on the connection and for the tables that its caller hands over.

The caller owns the transaction, so that an upgrade happens as a whole or not at all.
"""

from alembic import context

given = context.config.attributes
context.configure(
    connection=given["connection"],
    target_metadata=given["tables"],
    render_as_batch=True,
    transactional_ddl=True,
)
context.run_migrations()
