"""Old name of `config_base`, for a model.py or data.py written before 0.3; removed in 0.4."""

from .config_base import Section, within

__all__ = ["Section", "within"]
