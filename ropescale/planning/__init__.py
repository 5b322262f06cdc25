"""A schedule worked out for a configuration: the tables, and the configuration that carries them."""
