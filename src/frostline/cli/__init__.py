"""The command line. Importing this must stay fast: torch and everything above it is imported inside the commands."""

from frostline.cli.app import console_script, main

__all__ = ["console_script", "main"]
