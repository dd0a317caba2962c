"""Recurrences over tokens: what chunks taken one after the other cost beyond their bytes.

A delta rule's states pass from chunk to chunk inside one kernel, which runs a block per head and
part of its values: few heads leave SMs idle, and a chunk then takes its own latency.
"""

from __future__ import annotations

from raysim.hardware.specs import Provenance
from raysim.models.shapes import Scan

STEP_S = 1.322e-6
"""Of one chunk: fla's Triton kernels on H100 over 65,536 tokens, 2 heads of keys and 8 of values,
take 1.954 ms (flashinfer, pull request 3866), less what the roofline says of the kernels around.
Five shorter sequences there come out 7 % too short to 1 % too long."""
SCAN = Provenance(
    basis="assumed",
    source="roofline of a chunked recurrence, a chunk no less than 1.32 us: flashinfer's published "
    "times of fla's forward kernels on H100; backward and Mamba 2 were compared with nothing",
)


def waiting_s(scan: Scan, samples: float, bytes_per_s: float) -> float:
    """Seconds of a forward recurrence beyond its bytes; backward's are twice that.

    Parameters
    ----------
    samples
        Of the batch, over the ranks that share the heads.
    bytes_per_s
        What streaming kernels reach.
    """
    moved_s = 2.0 * scan.recurrent * samples / bytes_per_s
    return max(0.0, scan.steps * STEP_S - moved_s)
