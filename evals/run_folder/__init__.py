"""The folder of a run: its files and their types, written so that nothing is lost, and checked when read."""
