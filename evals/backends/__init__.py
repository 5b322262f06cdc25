"""What computes the numbers of a run: a loaded model, or servers."""
