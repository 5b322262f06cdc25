"""The command line: parse, call, print. ``main.py`` lists the commands; each lives in the module named after it."""
