"""Seconds that a layer norm's gradients of its weights take beyond their traffic.

Real counterpart: ``GammaBetaBackwardCUDAKernelTemplate`` (``layer_norm_kernel.cu``): thread blocks
of 32 columns walk over all rows, so that few columns leave most of the GPU idle; beyond 65,536 rows
the rows too are divided, 32 to a block, and the parts added up.

Not modelled: fewer than 256 rows, whose blocks are smaller.
"""

from __future__ import annotations

from collections.abc import Sequence

from raysim.hardware.specs import Provenance
from raysim.models.shapes import LayerNorm
from raysim.models.table import COMPUTE_DTYPE_BYTES
from raysim.perf.constants import MEASURED, GpuConstants

COLUMNS = 32
"""Of a block."""
BLOCKS_PER_SM = 2
"""Of 1,024 threads."""
MANY_ROWS = 64 * 1024
ROW_S, DIVIDED_ROW_S = 4.0e-9, 0.73e-9
"""Of a row: 3.9 to 4.1 ns of 4,096 to 65,536 rows of 64 to 320 columns; 0.72 to 0.75 of 200,000 to
262,144 rows of 64 to 128."""
SOURCE = Provenance(
    basis="measured",
    source="native_layer_norm_backward of SegFormer, Swin, ConvNeXt and sasrec-b256 on H100, less "
    f"its passes ({MEASURED}/script_operators.json); on others assumed",
)


def column_sums_s(c: GpuConstants, norms: Sequence[LayerNorm], batch: float, dtype: str) -> float:
    """GPU seconds beside two passes over gradient and input of a batch in ``dtype``."""
    if not norms or not c.system:  # a CPU sums as it streams
        return 0.0
    c.provenance["layer_norm"] = SOURCE
    size = max(2, COMPUTE_DTYPE_BYTES[dtype])
    return sum(_beside_s(c, norm.rows * batch, norm.width, size) for norm in norms)


def _beside_s(c: GpuConstants, rows: float, width: int, size: int) -> float:
    blocks = -(-width // COLUMNS)
    if rows > MANY_ROWS and blocks < c.gpu.sm_count / 2:
        whole = DIVIDED_ROW_S * rows
    else:
        whole = ROW_S * rows * max(1.0, blocks / (BLOCKS_PER_SM * c.gpu.sm_count))
    return max(0.0, whole - 2.0 * rows * width * size / c.memory_bytes_per_s)
