"""`python -m devkit.workload.tracing`: a request as JSON on stdin, the estimate as JSON on stdout.

A child process of its own, because importing torch takes seconds and its threads stay.
"""

import logging
import sys
import warnings

from devkit.errors import DevkitError
from devkit.workload.environment import prepare_process
from devkit.workload.tracing.request import dump_estimate, parse_request


def main() -> int:
    """Trace a request. Exit codes: 0 traced, 2 cannot be traced, with the reason on stderr."""
    request = parse_request(sys.stdin.read())
    prepare_process()
    # Output of libraries would come before the two lines that the parent shows.
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    import torch

    from devkit.workload.tracing.estimate import estimate_from_trace

    torch.set_num_threads(1)
    try:
        print(dump_estimate(estimate_from_trace(request)))  # noqa: T201 - the estimate is the output
    except DevkitError as error:
        print(f"{error.message}\n{error.hint}", file=sys.stderr)  # noqa: T201 - two lines that the parent shows
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
