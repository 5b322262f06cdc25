"""Inputs that nobody meant: seeds are mutated, the command line is run on them in process, and the outcome is judged.

::

    mutating.py   a JSON value, or bytes, with something wrong in it
    seeds.py      the healthy inputs that mutation starts from, all made here
    targets.py    what is mutated and which commands then read it: configurations, records, specs, ...
    judging.py    one case: run, with limits on time and memory, and what must hold of any outcome
    running.py    many cases, in processes that may hang or die; failures kept once each

``make fuzz SECONDS=3600 SEED=7`` runs it; ``make fuzz REPLAY=FOLDER`` runs one kept case again.
Case number N of a seed is the same whatever ran before it.
"""
