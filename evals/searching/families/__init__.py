"""The schedules that a search chooses among."""
