"""Who may do what: one token for operators, and one for each host that is derived from it.

An agent has only its own host's, so that a stolen one speaks for that host and no other, and changes nothing.
"""

import hmac
from pathlib import Path

from openmrc.control import Token
from openmrc.errors import FormatError
from openmrc.files import read_text

_LABEL = "openmrc operate 1 agent "


def agent_token(operator: Token, host: str) -> str:
    """The token of a host's agent, 64 hexadecimal digits."""
    return operator.key(_LABEL + host, b"").hex()


def is_agent(operator: Token, host: str, given: str) -> bool:
    """Whether a text is the token of a host's agent."""
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), agent_token(operator, host).encode())


def read_agent_tokens(path: Path) -> dict[str, str]:
    """The tokens of hosts, from a file with lines ``HOST TOKEN`` that other users may not read.

    Raises:
        FormatError: names the line that is wrong, or who may read the file.
        OSError: if it cannot be read.
    """
    if path.stat().st_mode & 0o007:
        raise FormatError(f"every user may open {path}, which holds tokens: chmod o= {path}")
    found = {}
    for number, line in enumerate(read_text(path).splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) != 2 or not words[1].isalnum() or not words[1].isascii():
            raise FormatError(
                f"{path}:{number}: a line is HOST TOKEN, as `openmrc controller --agent-tokens` prints"
            )
        found[words[0]] = words[1]
    return found
