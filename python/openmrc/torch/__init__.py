"""PyTorch over MRC: ``torch.distributed.init_process_group("mrc")``.

It carries tensors in main memory, and those on accelerators by way of it. It needs torch 2.14, which knows
the backend without an import of ours: it calls :func:`register` when it is imported itself (entry point
``torch.backends``). Nothing else is loaded before the first process group is made.
"""

from typing import Any

BACKEND = "mrc"
"""The backend's name."""
DEVICES = ["cpu", "cuda"]
"""Where the tensors are that it carries; ``cuda`` is AMD's too."""


def register() -> None:
    """Makes the backend's name known to torch. It never raises: torch would not import."""
    try:
        import torch.distributed as dist

        if dist.is_available() and not hasattr(dist.Backend, BACKEND.upper()):
            dist.Backend.register_backend(BACKEND, _create, extended_api=True, devices=DEVICES)
    except Exception:
        import warnings

        warnings.warn("openmrc could not register its backend with this version of torch", stacklevel=1)


def _create(options: Any, backend_options: Any) -> Any:
    from openmrc.torch.backend import create

    return create(options, backend_options)
