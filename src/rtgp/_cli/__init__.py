"""The command line: rtgp demo | fit | predict | compare | info."""

from rtgp._cli.app import app, main

__all__ = ["app", "main"]
