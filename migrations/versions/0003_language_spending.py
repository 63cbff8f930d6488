"""What questions to language models cost."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "language_spending",
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("at_s", sa.Float(precision=53), nullable=False),
        sa.Column("subject", sa.String(), nullable=False),
        sa.Column("purpose", sa.String(), nullable=False),
        sa.Column("read", sa.Integer(), nullable=False),
        sa.Column("written", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("seq", name="pk_language_spending"),
    )
    for column in ("at_s", "subject"):
        op.create_index(f"ix_language_spending_{column}", "language_spending", [column])
