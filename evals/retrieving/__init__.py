"""Retrieval: measures whether a model finds a number hidden in a long text, or the answers to prompts from a file.

::

    prompts.py    prompts of an exact length in tokens that hide a number, and their filler (words.json)
    prompt_set.py the options and prompts of a run, generated or read from a file (:mod:`..data.prompts`)
    retrieval_run.py  schedules x lengths x prompts, as tasks of the runner
    results.py    answers, RULER's score, accuracy with Wilson intervals, effective length, paired NLL, and the files
    plots.py      heat maps by length and depth or task

(The package is not named after its public function ``retrieval``, because importing a submodule would hide it.)
"""
