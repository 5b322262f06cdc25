"""Retrieval: measures whether a model finds a number that is hidden in a long text, or the answers of a file's prompts.

::

    filler.py     the sentences that fill a text, and the dice they are drawn with
    tasks.py      prompts of an exact length, made from tokens: passkey and multi-key
    prompt_set.py the options and prompts of a run, made for a task or read from a file (:mod:`..data.prompts`)
    answering.py  the NLL of an answer, whether greedy decoding would write it, and what it writes
    answers.py    answers, RULER's score, and the rows of the tables
    running.py    schedules x lengths x prompts, as tasks of the runner
    plots.py      heat maps by length and depth or task
    results.py    accuracy with Wilson intervals, effective length, paired NLL; the result and its files

(The package is not named after its public function ``retrieval``, because importing a submodule would hide it.)
"""
