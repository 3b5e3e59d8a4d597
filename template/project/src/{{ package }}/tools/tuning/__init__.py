"""The stages of `tools/tune.py`."""
