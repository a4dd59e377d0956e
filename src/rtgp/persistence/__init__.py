"""Models as files: safetensors and JSON, with a format version and a checksum; no pickle."""

from rtgp.persistence.models import load_model, save_model

__all__ = ["load_model", "save_model"]
