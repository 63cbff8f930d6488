"""The first tables."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def _seconds(name: str, *, nullable: bool = False) -> sa.Column[float]:
    return sa.Column(name, sa.Float(precision=53), nullable=nullable)


def _text(name: str, *, nullable: bool = False) -> sa.Column[str]:
    return sa.Column(name, sa.String(), nullable=nullable)


def _whole(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.Integer(), nullable=False)


def _json(name: str) -> sa.Column[object]:
    return sa.Column(name, sa.JSON(), nullable=False)


def _subjects() -> None:
    op.create_table(
        "studies",
        _text("id"),
        _seconds("created_s"),
        _text("state"),
        _json("document"),
        sa.PrimaryKeyConstraint("id", name="pk_studies"),
    )
    op.create_index("ix_studies_created_s", "studies", ["created_s"])
    op.create_index("ix_studies_state", "studies", ["state"])
    op.create_table(
        "trials",
        _text("id"),
        _text("study_id"),
        _whole("number"),
        _text("state"),
        _text("digest"),
        _json("document"),
        sa.PrimaryKeyConstraint("id", name="pk_trials"),
        sa.ForeignKeyConstraint(["study_id"], ["studies.id"], name="fk_trials_study_id"),
        sa.UniqueConstraint("study_id", "number", name="uq_trials_study_id_number"),
    )
    op.create_table(
        "rollouts",
        _text("id"),
        _text("study_id", nullable=True),
        _whole("version"),
        _seconds("created_s"),
        _text("phase"),
        sa.Column("active", sa.Boolean(), nullable=False),
        _text("digest"),
        _json("document"),
        sa.PrimaryKeyConstraint("id", name="pk_rollouts"),
        sa.ForeignKeyConstraint(["study_id"], ["studies.id"], name="fk_rollouts_study_id"),
    )
    op.create_index("ix_rollouts_created_s", "rollouts", ["created_s"])
    op.create_index("ix_rollouts_study_id", "rollouts", ["study_id"])
    active = sa.column("active", sa.Boolean()).is_(True)
    op.create_index(
        "uq_rollouts_one_active",
        "rollouts",
        ["active"],
        unique=True,
        sqlite_where=active,
        postgresql_where=active,
    )
    op.create_table(
        "verdicts",
        _whole("seq"),
        _text("subject_id"),
        _seconds("at_s"),
        _text("outcome"),
        _json("document"),
        sa.PrimaryKeyConstraint("seq", name="pk_verdicts"),
    )
    op.create_index("ix_verdicts_subject_id", "verdicts", ["subject_id"])


def _decisions() -> None:
    op.create_table(
        "approval_requests",
        _text("id"),
        _text("rollout_id"),
        _whole("rollout_version"),
        _text("digest"),
        _seconds("created_s"),
        _seconds("expires_s"),
        _text("answer", nullable=True),
        _json("document"),
        sa.PrimaryKeyConstraint("id", name="pk_approval_requests"),
        sa.ForeignKeyConstraint(
            ["rollout_id"], ["rollouts.id"], name="fk_approval_requests_rollout_id"
        ),
    )
    op.create_index("ix_approval_requests_rollout_id", "approval_requests", ["rollout_id"])
    op.create_table(
        "commands",
        _text("id"),
        _text("kind"),
        _seconds("created_s"),
        _text("outcome", nullable=True),
        _json("document"),
        sa.PrimaryKeyConstraint("id", name="pk_commands"),
    )
    pending = sa.text("outcome IS NULL")
    op.create_index(
        "uq_commands_one_pending",
        "commands",
        ["kind"],
        unique=True,
        sqlite_where=pending,
        postgresql_where=pending,
    )


def _ledger() -> None:
    op.create_table(
        "events",
        _whole("seq"),
        _seconds("at_s"),
        _text("kind"),
        _text("subject"),
        _json("document"),
        sa.PrimaryKeyConstraint("seq", name="pk_events"),
    )
    for column in ("at_s", "kind", "subject"):
        op.create_index(f"ix_events_{column}", "events", [column])
    op.create_table(
        "actions",
        _whole("id"),
        _text("intent"),
        _text("subject"),
        _seconds("began_s"),
        _text("outcome", nullable=True),
        _seconds("ended_s", nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_actions"),
    )
    op.create_index("ix_actions_subject", "actions", ["subject"])
    op.create_index("ix_actions_outcome", "actions", ["outcome"])
    lease = op.create_table(
        "lease",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        _text("holder"),
        _whole("token"),
        _seconds("expires_s"),
        sa.PrimaryKeyConstraint("id", name="pk_lease"),
    )
    op.bulk_insert(lease, [{"id": 1, "holder": "", "token": 0, "expires_s": 0.0}])
    op.create_table(
        "state",
        _text("key"),
        _json("value"),
        sa.PrimaryKeyConstraint("key", name="pk_state"),
    )


def upgrade() -> None:
    _subjects()
    _decisions()
    _ledger()
