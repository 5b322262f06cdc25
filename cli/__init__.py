"""The command line: parse, call, print. ``main.py`` lists the commands; every command has a module of its name."""
