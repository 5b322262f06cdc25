"""Output for users: tables, numbers and names in text, escaping, plots."""
