"""A PyTorch training project; train.py is the place to start reading."""

from .errors import check_rank, end_with_launcher

check_rank()
end_with_launcher()  # before torch is imported, which takes seconds
