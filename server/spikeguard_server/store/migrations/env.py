"""What Alembic runs: the revisions, on the connection that `migrate` hands over."""

from __future__ import annotations

from alembic import context

from spikeguard_server.store.tables import (  # noqa: F401 - their tables belong to the metadata
    notices,
    policies,
    samples,
)
from spikeguard_server.store.tables.core import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    transaction_per_migration=False,
)
with context.begin_transaction():
    context.run_migrations()
