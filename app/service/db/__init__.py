"""Storage: SQLAlchemy Core tables, one engine factory for SQLite and PostgreSQL, migrations, and the repositories."""
