"""The Rust core of openmrc."""

__all__ = ["__version__"]

__version__: str
