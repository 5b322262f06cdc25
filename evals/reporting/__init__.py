"""Many runs in one self-contained page: ``ropescale report RUN... -o report.html``."""
