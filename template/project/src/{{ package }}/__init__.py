"""A PyTorch training project; train.py is the place to start reading."""
