"""Archives that the project makes, unpacked."""

import tarfile


def unpack(archive, directory):
    """Unpacks a tarball. Debian 12's Python has no filters yet, and later ones warn without."""
    filters = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
    with tarfile.open(archive) as file:
        file.extractall(directory, **filters)
