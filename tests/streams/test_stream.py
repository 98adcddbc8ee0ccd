"""Reading a stream: purity, order, and the end of the stream."""

import pickle

import numpy as np
import pytest

from streams.schedule import Sequential
from streams.store.task_store import TaskStore
from streams.stream import Stream


def test_the_sequential_stream_is_one_task_after_the_other(digits_store: TaskStore) -> None:
    stream = Stream(digits_store, 0)
    assert (stream.length, stream.tasks, stream.has_boundaries) == (4_000, 20, True)
    points = stream.read(0, stream.length)
    np.testing.assert_array_equal(points.tasks, np.repeat(np.arange(20), 200))
    assert stream.ends == [(200 * (task + 1), task) for task in range(20)]
    assert [array.dtype for array in (points.image_ids, points.labels, points.tasks)] == [np.int32, np.int64, np.int32]


def test_reading_is_pure(digits_store: TaskStore) -> None:
    stream = Stream(digits_store, 2)
    whole = stream.read(0, stream.length)
    for start, count in ((3_990, 10), (0, 1), (195, 10), (777, 0), (195, 10)):
        part = stream.read(start, count)
        np.testing.assert_array_equal(part.image_ids, whole.image_ids[start : start + count])
        np.testing.assert_array_equal(part.labels, whole.labels[start : start + count])
        np.testing.assert_array_equal(part.tasks, whole.tasks[start : start + count])
    again = Stream(TaskStore.open(digits_store.path), 2, Sequential()).read(0, stream.length)
    np.testing.assert_array_equal(again.image_ids, whole.image_ids)


def test_a_read_may_be_changed_by_its_caller(digits_store: TaskStore) -> None:
    stream = Stream(digits_store, 0)
    stream.read(0, 10).image_ids[:] = -1
    assert stream.read(0, 10).image_ids.min() >= 0


def test_a_read_stops_at_the_end_and_fails_beyond_it(digits_store: TaskStore) -> None:
    stream = Stream(digits_store, 0)
    assert len(stream.read(3_995, 10)) == 5
    assert len(stream.read(4_000, 10)) == 0
    for start, count in ((4_001, 1), (-1, 1), (0, -1)):
        with pytest.raises(ValueError, match=f"but got start={start}, count={count}"):
            stream.read(start, count)


def test_held_out_points_belong_to_the_task(digits_store: TaskStore) -> None:
    stream = Stream(digits_store, 1)
    for split in ("validation", "test"):
        for task in (0, 19):
            points = stream.held_out(task, split)
            assert points.image_ids.shape == (60, 1)
            assert points.tasks.tolist() == [task] * 60
            looks = set((points.image_ids // digits_store.count).ravel().tolist())
            assert looks == {digits_store.table(1).manifest["tasks"][task]["view"]}
    np.testing.assert_array_equal(stream.held_out(3).image_ids, stream.held_out(3, "validation").image_ids)


@pytest.mark.parametrize(("task", "split"), [(-1, "test"), (20, "test"), (0, "train"), (0, "all")])
def test_a_held_out_set_that_does_not_exist_is_an_error(digits_store: TaskStore, task: int, split: str) -> None:
    with pytest.raises(ValueError, match=f"but got task={task}, split='{split}'"):
        Stream(digits_store, 0).held_out(task, split)


def test_a_stream_pickles(digits_store: TaskStore) -> None:
    stream = Stream(digits_store, 2)
    loaded = pickle.loads(pickle.dumps(stream))
    assert loaded.seed == 2
    np.testing.assert_array_equal(loaded.read(50, 20).labels, stream.read(50, 20).labels)
