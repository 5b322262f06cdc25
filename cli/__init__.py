"""The command line. ``main.py`` lists the commands; the module of a command has the same name."""
