"""Line of a journal: one operation of Optuna as JSON, with a checksum of its bytes.

The checksum is the last key of the operation, which Optuna ignores: any of its tools opens the
file. It finds accidents (a flipped bit, a lost block), and does not protect from forgery.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING
from zlib import crc32

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

_CHECKSUM_KEY = "crc32"
_MARK = f',"{_CHECKSUM_KEY}":"'.encode()

#: Codes of Optuna's journal format for what creates studies and trials; all other operations
#: change one of those by its number.
CREATE_STUDY = 0
CREATE_TRIAL = 4
_LAST_CODE = 10
#: What Optuna takes from an operation without a look at it.
_BLOCKS = ("user_attr", "user_attrs", "system_attr", "system_attrs", "params", "distributions")

#: Name of the user attribute of a trial that holds its record, and of its status.
RECORD_KEY = "record"
STATUS_KEY = "status"


def line_of(operation: Mapping[str, Any]) -> bytes:
    """Returns the line of an operation, with its checksum."""
    body = json.dumps(operation, separators=(",", ":")).encode()[:-1]
    return body + _MARK + _checksum(body) + b'"}\n'


def _checksum(body: bytes) -> bytes:
    return b"%08x" % crc32(body)


class Checker:
    """Checks the operations of a journal one after the other.

    Args:
        lenient: Whether operations may refer to a study that no operation before has created:
            that one may have been damaged.
    """

    def __init__(self, *, lenient: bool = False) -> None:
        self._studies = int(lenient)
        self._created = 0
        self._trials = 0
        self._checksums = False

    @property
    def has_study(self) -> bool:
        """Whether an operation has created a study."""
        return self._created > 0

    def parsed(self, line: bytes) -> tuple[dict[str, Any], str]:
        """Returns the operation of a line, and what is wrong with it or nothing."""
        body, mark, end = line.rpartition(_MARK)
        if mark and end != _checksum(body) + b'"}\n':
            return {}, "its checksum is not that of its content"
        try:
            operation = json.loads(line)
        except (ValueError, RecursionError):
            return {}, "not JSON"
        if not isinstance(operation, dict):
            return {}, "not an operation"
        operation.pop(_CHECKSUM_KEY, None)
        return operation, self._problem(operation, checked=bool(mark))

    def _problem(self, operation: dict[str, Any], *, checked: bool) -> str:
        """Counts an operation; returns why it cannot follow those before it, or nothing."""
        code = operation.get("op_code")
        if type(code) is not int or not 0 <= code <= _LAST_CODE or "worker_id" not in operation:
            return "not an operation of Optuna"
        for name, count in (("study", self._studies), ("trial", self._trials)):
            if f"{name}_id" in operation:
                number = operation[f"{name}_id"]
                if type(number) is not int or not 0 <= number < count:
                    return f"there is no {name} {number}"
        for name in _BLOCKS:
            if not isinstance(operation.get(name, {}), dict):
                return f"`{name}` is not a block"
        if code == CREATE_TRIAL:
            problem = self._trial_problem(operation, checked=checked)
            if problem:
                return problem
            self._trials += 1
            self._checksums = self._checksums or checked
        elif code == CREATE_STUDY:
            self._created += 1
            self._studies = max(self._studies, self._created)
        return ""

    def _trial_problem(self, operation: dict[str, Any], *, checked: bool) -> str:
        if not {"study_id", "datetime_start"} <= set(operation):
            return "an operation without its fields"
        if self._checksums and not checked:
            return "it has no checksum, and trials before it have one"
        attributes = operation.get("user_attrs", {})
        record = attributes.get(RECORD_KEY)
        if not isinstance(record, dict):
            return ""
        values = operation.get("values")
        if values is None and operation.get("value") is not None:
            values = [operation["value"]]
        if values is not None and values != record.get("values"):
            return "the trial and its record have other values"
        if attributes.get(STATUS_KEY, record.get("status")) != record.get("status"):
            return "the trial and its record have another status"
        return ""
