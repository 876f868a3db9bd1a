"""A terminal for tests: a pseudo terminal, and what somebody before it would see."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import termios
import threading
from typing import TextIO

_TOKEN = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])|([\r\n])|([^\x1b\r\n]+)")


class Terminal:
    """A pseudo terminal; programs write to ``file``. One that does not ``read`` stands still, as after Ctrl-S."""

    def __init__(self, columns: int = 100, rows: int = 40, *, read: bool = True) -> None:
        self._master, self._slave = pty.openpty()
        self.resize(columns, rows)
        self.file: TextIO = os.fdopen(os.dup(self._slave), "w", encoding="utf-8")
        self._written = b""
        self._is_up = True
        self._reader = threading.Thread(target=self._read, daemon=True)
        if read:
            self._reader.start()

    def resize(self, columns: int, rows: int = 40) -> None:
        """Change the size of the window."""
        fcntl.ioctl(self._slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    @property
    def written(self) -> str:
        """Everything written, as it came."""
        return self._written.decode("utf-8", errors="replace")

    def hang_up(self) -> None:
        """Take the terminal away, as a window that is closed."""
        self._is_up = False
        os.close(self._master)

    def end(self) -> str:
        """Close it; gives everything written."""
        self.file.close()
        os.close(self._slave)
        self._reader.join(30)
        return self.written

    def _read(self) -> None:
        # a closed descriptor may be another file by now
        while self._is_up:
            try:
                part = os.read(self._master, 65536)
            except OSError:
                return
            if not part:
                return
            self._written += part


def screen(written: str) -> list[str]:
    """The lines that ``written`` leaves on a terminal that is high and wide enough."""
    lines, row, column = [""], 0, 0
    for token in _TOKEN.finditer(written):
        number, command, control, text = token.groups()
        if command == "A":
            row = max(row - int(number or 1), 0)
        elif command == "K":
            lines[row] = ""
        elif control == "\r":
            column = 0
        elif control == "\n":
            row, column = row + 1, 0
            lines += [""] * (row + 1 - len(lines))
        elif text:
            lines[row] = lines[row][:column].ljust(column) + text + lines[row][column + len(text) :]
            column += len(text)
    return [line.rstrip() for line in lines]
