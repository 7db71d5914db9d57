"""Bridges to other libraries, one package each. Importing this package imports none of them."""
