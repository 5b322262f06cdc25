"""Commands that write, killed at random, and what must hold afterwards.

::

    scenes.py    the six commands, each with what lies on the disk before it
    striking.py  one run of a command, struck by a signal: at a step that it takes on the disk, or at a moment
    judging.py   what must hold after the strike, and after the same command has been given again
    __main__.py  all of it, as a table; ``make kill KILLS=50``

Most runs are forked from a process that has imported everything, because importing is most of what a command does;
some are fresh processes, as a user would start them.
"""
