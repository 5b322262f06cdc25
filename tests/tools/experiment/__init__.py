"""A mid-size model, trained, extended, measured and fine-tuned on one accelerator (``python -m experiment``)."""
