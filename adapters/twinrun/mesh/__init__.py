"""What the sharding of a user's JAX step means: docs/guides/jax.md#sharded-steps.

m = compare(step, state, batches)        # m["differs"], m["causes"]
f = emulated(step)                       # the step without a mesh, for one device
g = whole(step)                          # the step on a mesh of one device
"""

from .compare import compare
from .trace import emulated, whole

__all__ = ["compare", "emulated", "whole"]
