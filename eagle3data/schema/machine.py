"""What this machine's processor can do."""

from __future__ import annotations


def has_bfloat16_units() -> bool:
    """Whether the CPU computes in bfloat16 itself; others emulate it, ten times slower."""
    import torch

    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(name) for name in ("amx_bf16", "avx512_bf16"))
