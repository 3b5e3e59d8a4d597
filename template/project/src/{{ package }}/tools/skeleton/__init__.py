"""The minimal `data.py` and `model.py` that `make own` puts in place of the example."""
