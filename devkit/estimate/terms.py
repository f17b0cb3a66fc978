"""Parts of a sum in bytes, and the sources that their formulas were read in."""

from collections.abc import Iterable

from devkit.estimate.model import Term

_TRANSFORMERS = "https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers"
_TORCH = "https://github.com/pytorch/pytorch/blob/v2.13.0"

LAYERS = f"{_TRANSFORMERS}/models/llama/modeling_llama.py"
LOSS = f"{_TRANSFORMERS}/loss/loss_utils.py"
SDPA = f"{_TRANSFORMERS}/integrations/sdpa_attention.py"
CHECKPOINT = f"{_TORCH}/torch/utils/checkpoint.py"
ADAMW = f"{_TORCH}/torch/optim/adamw.py"
DDP = f"{_TORCH}/torch/nn/parallel/distributed.py"
FSDP = "https://arxiv.org/abs/2304.11277"
ZERO = "https://arxiv.org/abs/1910.02054"
QLORA = "https://arxiv.org/abs/2305.14314"
BITSANDBYTES = "https://github.com/bitsandbytes-foundation/bitsandbytes/blob/0.50.2/bitsandbytes"
INT8 = f"{BITSANDBYTES}/autograd/_functions.py"
OPTIMIZER_8BIT = f"{BITSANDBYTES}/optim/optimizer.py"
PEFT = "https://github.com/huggingface/peft/blob/v0.21.2/src/peft"
LORA = f"{PEFT}/tuners/lora/layer.py"
KBIT = f"{PEFT}/utils/other.py"
DORA = f"{PEFT}/tuners/lora/dora.py"
LIGER = "https://github.com/linkedin/Liger-Kernel/blob/main/src/liger_kernel/ops/fused_linear_cross_entropy.py"
CUBLAS = "https://docs.nvidia.com/cuda/cublas/#cublassetworkspace"
CACHE = f"{_TRANSFORMERS}/cache_utils.py"
PAGED = "https://arxiv.org/abs/2309.06180"
MEGATRON = "https://arxiv.org/abs/1909.08053"


def total(terms: Iterable[Term]) -> int:
    """Their sum in bytes."""
    return sum(term.bytes for term in terms)


def present(terms: Iterable[Term]) -> tuple[Term, ...]:
    """Those that take any memory."""
    return tuple(term for term in terms if term.bytes > 0)


def rounded(count: float) -> int:
    """Whole bytes."""
    return round(count)


def millions(count: int) -> str:
    """A number of parameters in a formula: 8,030.3 M."""
    return f"{count / 1e6:,.1f} M"
