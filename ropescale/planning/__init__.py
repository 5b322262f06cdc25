"""Plans a schedule for a configuration: computes its tables and the new configuration."""
