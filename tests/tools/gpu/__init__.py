"""What an accelerator shows: speed, memory and equality, on random weights (``make gpu``)."""
