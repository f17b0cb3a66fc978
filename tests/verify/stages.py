"""Which stages a proof leaves out on a machine without a GPU, where no model of the user's is named."""

NOT_ON_A_CPU = {"link-rate", "triton", "nccl", "memory-estimate", "own-model"}


def not_passed(document):
    """Name and status of each stage of a report's document that did not pass."""
    return {stage["name"]: stage["status"] for stage in document["stages"] if stage["status"] != "passed"}
