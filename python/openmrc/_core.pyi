"""The Rust core of openmrc."""

__version__: str
