"""Reading schedules as people write them: specs, their fields and values, users' own code."""
