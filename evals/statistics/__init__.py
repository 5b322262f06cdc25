"""Statistics: means and proportions with their intervals, what these rest on, and how often they cover the truth."""
