"""Retrieval: measures whether a model finds a number that is hidden in a long text, or the answers of a file's prompts.

::

    filler.py     the sentences that fill a text, and the dice they are drawn with
    tasks.py      prompts of an exact length, made from tokens: passkey and the other tasks
    prompt_set.py the prompts of a run, made for a task or read from a file (:mod:`..data.prompts`), without a model
    answering.py  the NLL of an answer, whether greedy decoding would write it, and what it writes
    running.py    schedules x lengths x prompts, as tasks of the runner
    answers.py    the stored answers, and RULER's score
    plots.py      heat maps by length and depth or task
    results.py    accuracy with Wilson intervals, effective length, paired comparison; the result and its files

(The package is not named after its public function ``retrieval``, because importing a submodule would hide it.)
"""
