"""Read ahead: the next chunk is fetched while this one is worked on."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator
from typing import TypeVar

__all__ = ["ahead"]

T = TypeVar("T")


def ahead(chunks: Iterable[T], depth: int = 1) -> Iterator[T]:
    """The same chunks, at most `depth` of them fetched by a thread before they are asked for.

    An error of the chunks is raised where it would have been; the thread ends when the iterator is closed.
    """
    waiting: queue.Queue[tuple[bool, T | BaseException | None]] = queue.Queue(depth)
    stopped = threading.Event()

    def put(more: bool, what: T | BaseException | None) -> bool:
        while not stopped.is_set():
            try:
                waiting.put((more, what), timeout=0.1)
            except queue.Full:
                continue
            return True
        return False

    def fetch() -> None:
        try:
            for chunk in chunks:
                if not put(True, chunk):
                    return
            put(False, None)
        except BaseException as error:
            put(False, error)

    thread = threading.Thread(target=fetch, name="arht-ahead", daemon=True)
    thread.start()
    try:
        while True:
            more, what = waiting.get()
            if more:
                yield what  # type: ignore[misc]
                del what
            elif what is None:
                return
            else:
                raise what  # type: ignore[misc]
    finally:
        stopped.set()
        thread.join()
