"""Statistics: means and proportions with their intervals, and the intervals' sampling units and coverage."""
