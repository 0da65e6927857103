"""The configuration: its schema, how it is composed from ``conf/``, and its units."""
