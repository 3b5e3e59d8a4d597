"""Readers of your own files, one a kind; a run on the data that is built in needs none of them."""
