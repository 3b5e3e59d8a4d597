"""A training project that is yours: start at train.py."""
