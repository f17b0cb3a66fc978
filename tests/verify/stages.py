"""Which stages a proof leaves out on a machine without a GPU, where no model of the user's is named."""

NOT_ON_A_CPU = {"link-rate", "triton", "nccl", "memory-estimate", "own-model"}
OF_THE_PROJECT = {"imports", "command"}
"""An empty project has nothing to import or to run."""


def not_passed(document):
    """Name and status of each stage that did not pass, without the project's that were skipped."""
    return {
        stage["name"]: stage["status"]
        for stage in document["stages"]
        if stage["status"] != "passed" and not (stage["name"] in OF_THE_PROJECT and stage["status"] == "skipped")
    }
