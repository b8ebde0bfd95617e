"""What the hardware does: seconds of products, attention and collectives, from measurements where there are any.

`load_calibration` finds the documents for a cluster and assembles a `Calibration`, which is what a job is priced with.

| look for | file |
| --- | --- |
| everything a job asks of its hardware; host time; memory bandwidth | `calibrated` |
| which document prices what; files and names | `loader` |
| seconds of a collective; between nodes | `collectives` (inside a node: `link_tables`; NCCL's latencies: `nccl`; put together: `build_links`) |
| which library has which algorithm, and what each takes | `algorithms` (`nccl_tuner`, `textbook`; curves: `algorithm_curves`) |
| the algorithm and the parts of a call's time | `call_parts` |
| a collective beside a computation | `beside` |
| which ranks share a domain, a node, a switch, a leaf | `placement`, `groups` (all groups of a strategy), `segments` (NVL72) |
| matrix products of any shape | `gemm` (surface: `surfaces`; special products: `products`; other peaks: `efficiency`) |
| attention kernels | `attention`, `attention_kernels`, `flash_constants` |

A GPU's data-sheet numbers (NVLink bandwidth, peaks, memory) are in `cost_models/presets/gpus/NAME.json`.
"""

from cost_models.hardware.calibrated import Calibration, Scalar
from cost_models.hardware.loader import (
    document_of,
    load_calibration,
    parse_document,
    read_document,
    reference_document,
    reference_names,
    shipped_document,
    shipped_names,
)

__all__ = [
    "Calibration",
    "Scalar",
    "document_of",
    "load_calibration",
    "parse_document",
    "read_document",
    "reference_document",
    "reference_names",
    "shipped_document",
    "shipped_names",
]
