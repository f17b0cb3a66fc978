"""What holds for every test."""

import gc
import os
import signal

import pytest
from hypothesis import HealthCheck, settings

from tests.nvml_stub import build_stub

ALLOCATIONS = 100_000
"""So many objects more than were given back, before Python looks for circles among them. By itself it does so after
700, again and again through all that twenty thousand collected tests are made of: an eighth of their time."""


SLOW_FOLDERS = ("faults", "fuzz")
"""They take minutes: `make test` runs the samples of them that are named here."""
SAMPLES = (
    "test_a_file_is_read_without_waiting",
    "test_any_amount_of_disk_may_be_left",
    "test_every_sound_text_says_something",
    "test_a_version_is_read_back_as_it_was",
    "test_an_address_never_keeps_its_login",
    "test_a_document_with_lines_is_one_or_says_where_not",
    "test_saved_facts_with_another_value_are_facts_or_said_to_be_wrong",
)


def pytest_collection_modifyitems(items):
    """Leave all but samples of the slow folders to `make test-all`."""
    for item in items:
        if item.path.parent.name in SLOW_FOLDERS and item.originalname not in SAMPLES:
            item.add_marker(pytest.mark.full)


def pytest_configure() -> None:
    """What a shell starts in the background ignores SIGINT, and what nohup starts ignores SIGHUP: both would be handed
    on to the programs that tests interrupt.
    """
    # A red test must be this commit's, so examples are the same each time. On a busy machine neither a slow example nor
    # slow drawing is a fault.
    settings.register_profile(
        "seeded",
        derandomize=True,
        database=None,
        print_blob=True,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.load_profile("seeded")
    gc.set_threshold(ALLOCATIONS, *gc.get_threshold()[1:])
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


@pytest.fixture(scope="session", autouse=True)
def _no_package_index():
    """What uv finds in an index changes by the day; a test that resolves has an index of its own."""
    os.environ["UV_OFFLINE"] = "1"


@pytest.fixture(scope="session", autouse=True)
def _no_container_of_a_trial():
    """A test that starts containers on the engine of this machine asks for it."""
    os.environ["DEVKIT_TRIAL"] = "0"


@pytest.fixture(scope="session", autouse=True)
def _no_data_of_the_user(tmp_path_factory):
    """Whoever runs the tests may have measured runs of their own."""
    os.environ["XDG_DATA_HOME"] = str(tmp_path_factory.mktemp("data home"))


@pytest.fixture(scope="session")
def stub(tmp_path_factory):
    """The stand-in for libnvidia-ml.so.1, compiled once."""
    return build_stub(tmp_path_factory.mktemp("nvml"))
