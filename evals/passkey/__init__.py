"""Retrieval: is a number that was hidden in a long text found again, at which lengths and depths.

::

    filler.py     the sentences that fill a text, from word lists of our own, and the dice they are drawn with
    encoder.py    text to ids, as within a longer text
    tasks.py      prompts of an exact length, made at token level: passkey and its kin
    quiz.py       all the questions of a run, before any model is there
    answering.py  a model and a prompt in, the answer's NLL and whether greedy decoding would give it out
    running.py    schedules x lengths x prompts, as tasks of the one runner
    answers.py    what is stored of each answer
    metrics.py    accuracy with Wilson intervals, effective length, paired comparison
    results.py    the result and its files

(The package is not called after its public function ``retrieval``: importing a submodule would hide it.)
"""
