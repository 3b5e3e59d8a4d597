"""Tests of this project: `make test`."""
