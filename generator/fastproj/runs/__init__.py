"""Commands that read the runs of a project."""
