"""Texts and prompts that a search feeds to the model."""
