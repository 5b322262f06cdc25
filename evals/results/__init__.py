"""The results of a measurement: stored losses, statistics, tables, plots and folders."""
