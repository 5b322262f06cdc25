"""What a measurement leaves: stored NLLs, statistics, tables, plots, folders."""
