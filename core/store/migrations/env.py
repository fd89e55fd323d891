"""Alembic's entry: runs the migrations on the connection it is handed.

Alembic executes this file for each command; nothing imports it.
"""

from __future__ import annotations

from alembic import context

from core.store.tables import metadata

connection = context.config.attributes["connection"]
# Batch mode: SQLite cannot alter a constraint in place, so Alembic copies the table.
context.configure(connection=connection, target_metadata=metadata, render_as_batch=True)
context.run_migrations()
