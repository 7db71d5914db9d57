"""Checkpoints and run folders: the trained part, its storage in Hugging Face peft's layout, exact resume.

No pickle is written or read. Knows plans and adapters; nothing of data, recipes or the training loop.
"""

from frostline.checkpoint.adapter_file import AdapterFile, read_adapter, write_adapter
from frostline.checkpoint.fingerprint import BaseIdentity, fingerprint_files, fingerprint_model
from frostline.checkpoint.load import LoadedState, load_checkpoint
from frostline.checkpoint.manifest import Manifest
from frostline.checkpoint.peft_layout import PeftLayout, plan_layout
from frostline.checkpoint.run_folder import RunFolder
from frostline.checkpoint.save import save_checkpoint
from frostline.checkpoint.trained_part import save_trained

__all__ = [
    "AdapterFile",
    "BaseIdentity",
    "LoadedState",
    "Manifest",
    "PeftLayout",
    "RunFolder",
    "fingerprint_files",
    "fingerprint_model",
    "load_checkpoint",
    "plan_layout",
    "read_adapter",
    "save_checkpoint",
    "save_trained",
    "write_adapter",
]
