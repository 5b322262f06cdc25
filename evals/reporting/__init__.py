"""The comparison of runs on one self-contained page: ``ropescale report RUN... -o report.html``."""
