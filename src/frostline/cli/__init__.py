"""The command line. Importing this must stay fast: torch and everything above it is imported inside the commands."""

from frostline.cli.app import main

__all__ = ["main"]
