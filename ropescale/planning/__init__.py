"""Plans of a schedule for a configuration: the tables, and the new configuration."""
