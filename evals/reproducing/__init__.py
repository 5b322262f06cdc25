"""``ropescale reproduce``: the claims of the papers on context extension, run on the bundled model.

Each arm (a training, a measurement, a model made from nothing) is a step of its own below the folder, and goes on where
it was stopped. Claims are comparisons of stored losses on the same tokens, so they cost no forward pass.
"""
