"""A PyTorch training project; train.py is the place to start reading."""

from .errors import end_with_launcher

end_with_launcher()  # before torch is imported, which takes seconds
