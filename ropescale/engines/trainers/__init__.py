"""Trainers: the configuration lines that train a model under a schedule, one module per trainer.

They load models with transformers, so a patched folder is trained as patched. What they differ in is how a schedule is
asked for without such a folder, and which versions of transformers they admit.
"""
