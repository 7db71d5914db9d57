"""Trainability over time: what a config says of phases, the phases of a plan, and entering one."""
