"""The kinds of selector, one file each; a new file here that calls `register_kind` adds a kind."""
