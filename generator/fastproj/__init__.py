"""fastproj renders PyTorch training repositories; see `fastproj --help`."""
