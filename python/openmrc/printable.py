"""Text from elsewhere (names of files, reasons of a peer) in a form that a terminal shows as it is."""


def printable(text: str) -> str:
    r"""The text with what is not printable escaped as in a Python string: ``\n``, ``\x1b``, ``\u202e``.

    Text without such characters stays as it is; otherwise backslashes are doubled, so that the result is
    unambiguous.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() and c != "\\" else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")
