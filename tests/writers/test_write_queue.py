"""Bounded, in order, and honest about errors."""

from __future__ import annotations

import threading

import pytest

from eagle3data.writers.write_queue import WriteQueue


def test_work_is_done_in_order() -> None:
    queue = WriteQueue(1000)
    done: list[int] = []
    for number in range(100):
        queue.submit(lambda number=number: done.append(number), 10)  # type: ignore[misc]
    queue.drain()
    assert done == list(range(100))
    queue.close()


def test_a_slow_writer_slows_and_memory_stays_bounded() -> None:
    queue = WriteQueue(100)
    go = threading.Event()
    queue.submit(go.wait, 60)
    queue.submit(go.wait, 40)
    third = threading.Thread(target=queue.submit, args=(go.wait, 10))
    third.start()
    while queue.waited == 0:
        pass
    assert third.is_alive()  # waits for room
    go.set()
    third.join()
    queue.drain()
    assert queue.waited == 1
    queue.close()


def test_one_item_above_the_bound_is_let_in_alone() -> None:
    queue = WriteQueue(10)
    done: list[int] = []
    queue.submit(lambda: done.append(1), 500)
    queue.submit(lambda: done.append(2), 500)
    queue.drain()
    assert done == [1, 2]
    queue.close()


def test_an_error_comes_back_and_stops_what_is_behind_it() -> None:
    queue = WriteQueue(100)
    go = threading.Event()
    done: list[int] = []

    def fail() -> None:
        go.wait()
        raise OSError("the disk is gone")

    queue.submit(fail, 60)
    queue.submit(lambda: done.append(1), 10)
    go.set()
    with pytest.raises(OSError, match="the disk is gone"):
        queue.drain()
    with pytest.raises(OSError, match="the disk is gone"):
        queue.submit(lambda: done.append(2), 10)
    queue.close()
    assert done == []


def test_a_caller_that_waits_for_room_is_told_of_an_error() -> None:
    queue = WriteQueue(10)
    go = threading.Event()

    def fail() -> None:
        go.wait()
        raise OSError("full")

    queue.submit(fail, 10)
    caught: list[BaseException] = []

    def submit() -> None:
        try:
            queue.submit(lambda: None, 10)
        except OSError as error:
            caught.append(error)

    thread = threading.Thread(target=submit)
    thread.start()
    while queue.waited == 0:
        pass
    go.set()
    thread.join()
    assert len(caught) == 1
    queue.close()
