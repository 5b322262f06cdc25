"""The results of a measurement: stored losses, tables and plots."""
