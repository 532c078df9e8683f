"""Dump directories: manifest, files, normal forms that goldens compare, autotune locks."""
