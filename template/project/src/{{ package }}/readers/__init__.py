"""Readers for your own files, one module per kind. They do not import `data.py`, which imports them."""
