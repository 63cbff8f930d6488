"""Orders are bound to the rollout that they are for."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_PENDING = sa.text("outcome IS NULL")
_COMMANDS = sa.table(
    "commands",
    sa.column("id", sa.String()),
    sa.column("kind", sa.String()),
    sa.column("rollout_id", sa.String()),
    sa.column("outcome", sa.String()),
    sa.column("document", sa.JSON()),
)
_ROLLOUTS = sa.table("rollouts", sa.column("id", sa.String()), sa.column("active", sa.Boolean()))


def upgrade() -> None:
    op.drop_index("uq_commands_one_pending", "commands")
    with op.batch_alter_table("commands") as table:
        table.add_column(sa.Column("rollout_id", sa.String(), nullable=False, server_default=""))
    with op.batch_alter_table("commands") as table:
        table.alter_column("rollout_id", server_default=None)
    _bind_pending_rollback()
    op.create_index(
        "uq_commands_one_pending",
        "commands",
        ["kind", "rollout_id"],
        unique=True,
        sqlite_where=_PENDING,
        postgresql_where=_PENDING,
    )


def _bind_pending_rollback() -> None:
    """What was ordered of the rollout under way is for that one; without one it is void."""
    connection = op.get_bind()
    pending = connection.execute(
        sa.select(_COMMANDS.c.id, _COMMANDS.c.document).where(
            _COMMANDS.c.kind == "rollback", _COMMANDS.c.outcome.is_(None)
        )
    ).one_or_none()
    if pending is None:
        return
    active = connection.execute(sa.select(_ROLLOUTS.c.id).where(_ROLLOUTS.c.active)).scalar()
    changed: dict[str, object] = {"outcome": "no rollout was under way, nothing was done."}
    if active is not None:
        changed = {"kind": "rollout_abort", "rollout_id": active}
    connection.execute(
        sa.update(_COMMANDS)
        .where(_COMMANDS.c.id == pending.id)
        .values(**changed, document={**pending.document, **changed})
    )
