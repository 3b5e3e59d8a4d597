"""`fastproj new` and `detect`."""
