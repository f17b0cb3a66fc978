"""`python -m devkit.workload.tracing`: a request as JSON on stdin, the estimate as JSON on stdout.

A child process of its own, because importing torch takes seconds and its threads stay.
"""

import logging
import sys
import warnings

from devkit.errors import DevkitError
from devkit.workload.packages import prepare_process
from devkit.workload.tracing.request import estimate_text, read_request


def main() -> int:
    """Exit codes: 0 traced, 2 cannot be traced; what cannot be is said in the answer."""
    request = read_request(sys.stdin.read())
    prepare_process()
    # What libraries say of themselves would stand before the two lines that the parent shows.
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    import torch

    from devkit.workload.tracing.exact import exact

    torch.set_num_threads(1)
    try:
        print(estimate_text(exact(request)))  # noqa: T201 - the answer is the output
    except DevkitError as error:
        print(f"{error.message}\n{error.hint}", file=sys.stderr)  # noqa: T201 - two lines that the parent shows
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
