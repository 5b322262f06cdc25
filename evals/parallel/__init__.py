"""The distribution of a measurement over processes and devices."""
