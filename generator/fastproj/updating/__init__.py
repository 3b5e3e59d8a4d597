"""`fastproj update`, `status` and `adopt`."""
