"""How much memory there is. How much a run takes, the core estimates."""

from pathlib import Path


def available() -> int:
    """Bytes that this machine, or the control group that the process is in, can still give."""
    least = 1 << 62
    for line in _lines(Path("/proc/meminfo")):
        if line.startswith("MemAvailable:"):
            least = int(line.split()[1]) * 1024
    for limit, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        most, now = _lines(Path(limit)), _lines(Path(used))
        if most and now and most[0].isdigit() and now[0].isdigit():
            least = min(least, max(0, int(most[0]) - int(now[0])))
    return least


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
