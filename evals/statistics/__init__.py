"""Statistics: means and proportions with their intervals, the units that these sample, and their coverage."""
