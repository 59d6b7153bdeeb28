"""What a log's beginning hashes to, so that whoever holds a copy of it can tell whether it is one."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gpualert.records import RunRecord

_PIECE_BYTES = 1024 * 1024


def of_beginning(record: RunRecord, generation: int, length: int) -> dict[str, Any]:
    """
    :param generation: that the caller has a copy of.
    :param length: of the copy, in bytes.
    :return: ``generation`` that the log has now, ``length`` (bytes hashed: fewer than asked for when the log is
        shorter), ``sha256`` of them, in hex. When the generation is not the one asked for, nothing was hashed and
        ``sha256`` is None.
    :raises OSError: the log cannot be read.
    """
    import hashlib

    from gpualert.follow import current_generation
    from gpualert.logfile import TimeIndex
    from gpualert.rundir import RunDirectory

    index = TimeIndex(RunDirectory(record.run_directory).index_path)
    found = hashlib.sha256()
    hashed = 0
    current = current_generation(record, index, generation)
    if current == generation:
        with open(record.log_path, "rb", buffering=0) as log:
            os.posix_fadvise(log.fileno(), 0, max(0, length), os.POSIX_FADV_SEQUENTIAL)
            while hashed < length:
                piece = log.read(min(_PIECE_BYTES, length - hashed))
                if not piece:
                    break
                found.update(piece)
                hashed += len(piece)
        current = current_generation(record, index, generation)  # it may have been cut under our hands
    if current != generation:
        return {"generation": current, "length": 0, "sha256": None}
    return {"generation": current, "length": hashed, "sha256": found.hexdigest()}
