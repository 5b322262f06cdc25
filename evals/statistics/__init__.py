"""Statistics: means and proportions with their intervals, sampling units, and coverage."""
