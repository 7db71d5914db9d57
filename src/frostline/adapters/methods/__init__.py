"""The methods, one file each; a new file here that calls `register_method` adds one."""
