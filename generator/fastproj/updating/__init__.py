"""`fastproj update`, `status`, `components`, `add` and `remove`."""
