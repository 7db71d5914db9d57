"""The maths of adapted layers."""
