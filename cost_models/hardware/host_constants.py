"""What a host takes to issue one operation where no profile timed it, by the hosts that GPUs of a generation come with. [F-4]"""

from __future__ import annotations

from collections.abc import Mapping

from cost_models.constants import GENERATIONS, Constant
from cost_models.specs.cluster import Generation
from cost_models.units import MICRO

HOST_LOOP_OP_2022_S = Constant(
    18.0 * MICRO, "s", 10.0 * MICRO, 30.0 * MICRO,
    "as below, of hosts of 2022 with PyTorch 1: 25 us in a step, chosen with vtrain_single (A100), over HOST_STEP_RATIO; no loop was timed",
)  # fmt: skip
HOST_LOOP_OP_2026_S = Constant(
    26.0 * MICRO, "s", 15.0 * MICRO, 40.0 * MICRO,
    "an operator of a plain eager Llama layer in a loop: the median of our agent's profiles of one to four H100 and H200 in eight leases "
    "(20 to 31 us; Intel Xeon, virtual machines, PyTorch 2.11; data/measured_h100, data/measured_h200)",
)  # fmt: skip
# GPUs of one generation are sold with hosts of one time and run the software of that time; nothing else tells an unknown host's speed.
HOST_LOOP_OP_S: Mapping[Generation, Constant] = {
    generation: HOST_LOOP_OP_2022_S if generation in ("volta", "ampere") else HOST_LOOP_OP_2026_S
    for generation in GENERATIONS
}
BARE_OP_RATIO = Constant(
    0.31, "1", 0.26, 0.37,
    "host time of an operation outside of modules and autograd, as an optimizer issues them, over that of a layer's operator: the median "
    "of those profiles (6.5 to 9.8 us)",
)  # fmt: skip
