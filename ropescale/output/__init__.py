"""Output for people: tables, numbers and names in text, foreign text made harmless, pictures."""
