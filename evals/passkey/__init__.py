"""Retrieval: is a number that was hidden in a long text found again, at which lengths and depths.

::

    words.py      the sentences that fill a text, from word lists of our own, and the dice they are drawn with
    tasks.py      prompts of an exact length, made at token level: passkey and its kin
    answering.py  a model and a prompt in, the answer's NLL and whether greedy decoding would give it out
    results.py    accuracy with Wilson intervals, effective length, paired comparison, files
    running.py    schedules x lengths x prompts

(The package is not called after its public function ``retrieval``: importing a submodule would hide it.)
"""
