"""The directories that devkit, an engine or a hub library will write to."""

from devkit.facts.model import Directory, Platform, Storage
from devkit.facts.values import Unknown
from devkit.probe.container import container_kind
from devkit.probe.host import Host
from devkit.probe.system import platform_of, user_id

NOBODY_KNOWN = -1
"""The owner of a directory that does not exist, and every user on Windows."""


ENGINE_FOLDERS = ("/var/lib/docker", "/var/snap/docker/common/var-lib-docker", "/var/lib/containers/storage")
WINDOWS_DRIVE = "/mnt/c"
USERS_ENGINE_FOLDERS = (".local/share/docker", ".local/share/containers/storage")


def read_storage(host: Host, *, project: str) -> Storage:
    """Hub cache, `project` (the workspace's absolute path), engine data and temporary files, and the user."""
    user = user_id(host)
    wanted = [
        ("hub cache", hub_cache(host)),
        ("workspace", project),
        *(("engine data", path) for path in _engine_folders(host)),
        ("temporary", host.env.get("TMPDIR") or host.env.get("TEMP") or "/tmp"),  # noqa: S108 - read, not written
        ("Windows drive", _windows_drive(host)),
    ]
    mounts = _mounts(host)
    directories = tuple(_directory(host, path, purpose, mounts) for purpose, path in wanted if path)
    return Storage(NOBODY_KNOWN if user is None else user, directories)


def hub_cache(host: Host) -> str:
    """Where huggingface_hub keeps models: HF_HUB_CACHE, HF_HOME/hub, XDG_CACHE_HOME or ~/.cache; "" without a home."""
    env = host.env
    if cache := env.get("HF_HUB_CACHE") or env.get("HUGGINGFACE_HUB_CACHE"):
        return cache
    home = env.get("HOME") or env.get("USERPROFILE")
    caches = env.get("XDG_CACHE_HOME") or (f"{home}/.cache" if home else "")
    hub = env.get("HF_HOME") or (f"{caches}/huggingface" if caches else "")
    return f"{hub}/hub" if hub else ""


def _engine_folders(host: Host) -> tuple[str, ...]:
    """Where engines keep images, as far as they exist; which one is in use, the engine itself says."""
    home = host.env.get("HOME")
    users = (f"{home}/{folder}" for folder in USERS_ENGINE_FOLDERS) if home else ()
    return tuple(path for path in (*ENGINE_FOLDERS, *users) if host.stat(path) is not None)


def _windows_drive(host: Host) -> str:
    """Where WSL shows the drive of Windows that holds the guest's own disk, as a file that grows; "" outside of WSL."""
    is_guest = platform_of(host) is Platform.WSL2 and not container_kind(host)
    return WINDOWS_DRIVE if is_guest and host.stat(WINDOWS_DRIVE) is not None else ""


def _directory(host: Host, path: str, purpose: str, mounts: tuple[tuple[str, str], ...]) -> Directory:
    found = host.stat(path)
    nearest = path
    while host.stat(nearest) is None and "/" in nearest.strip("/"):
        nearest = nearest.rpartition("/")[0]
    free, files = host.free_bytes(nearest), host.free_files(nearest)
    return Directory(
        path=path,
        purpose=purpose,
        exists=found is not None and found.kind == "directory",
        # What does not exist yet is as writable as the parent it will be made in.
        is_writable=host.is_writable(nearest),
        owner_uid=found.uid if found else NOBODY_KNOWN,
        file_system=_file_system(host.link(nearest) or nearest, mounts),
        free_bytes=Unknown(f"the file system of {nearest} does not say") if free is None else free,
        free_files=Unknown(f"the file system of {nearest} does not count its files") if files is None else files,
    )


def _mounts(host: Host) -> tuple[tuple[str, str], ...]:
    """Mount points with their file system types, the longest first."""
    rows = (line.split() for line in (host.read("/proc/mounts") or "").splitlines())
    pairs = {(row[1].replace("\\040", " "), row[2]) for row in rows if len(row) > 2}
    return tuple(sorted(pairs, key=lambda pair: len(pair[0]), reverse=True))


def _file_system(path: str, mounts: tuple[tuple[str, str], ...]) -> str:
    for point, kind in mounts:
        if path == point or path.startswith(point.rstrip("/") + "/"):
            return kind
    return ""
