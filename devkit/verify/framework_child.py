"""Multiply on the GPU with JAX or TensorFlow, in the project's Python: it needs Python 3.7, and imports nothing of devkit.

    python framework_child.py jax|tensorflow

Prints one JSON object: `{"version": TEXT, "gpus": COUNT, "computed_on": "gpu" or "cpu", "sum": NUMBER}`.
"""

import json
import sys
from importlib import import_module

SIZE = 64
"""The sum of the product of two matrices of ones is the cube of it, exactly, in every precision."""


def multiply_with_jax() -> "dict[str, object]":
    """Multiply on the default device."""
    jax = import_module("jax")

    devices = [each for each in jax.devices() if each.platform in ("gpu", "cuda", "rocm")]
    ones = jax.numpy.ones((SIZE, SIZE))
    computed_on = "gpu" if devices else "cpu"
    total = float((ones @ ones).sum())
    return {"version": jax.__version__, "gpus": len(devices), "computed_on": computed_on, "sum": total}


def multiply_with_tensorflow() -> "dict[str, object]":
    """Multiply on the default device."""
    tensorflow = import_module("tensorflow")

    gpus = tensorflow.config.list_physical_devices("GPU")
    ones = tensorflow.ones((SIZE, SIZE))
    product = tensorflow.matmul(ones, ones)
    computed_on = "gpu" if "GPU" in product.device else "cpu"
    total = float(tensorflow.reduce_sum(product))
    return {"version": tensorflow.__version__, "gpus": len(gpus), "computed_on": computed_on, "sum": total}


if __name__ == "__main__":
    multiply = {"jax": multiply_with_jax, "tensorflow": multiply_with_tensorflow}[sys.argv[1]]
    sys.stdout.write(json.dumps(multiply()))
