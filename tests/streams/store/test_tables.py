"""Table files: one record batch with the columns of the schema, without nulls."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from streams.errors import StoreError
from streams.store.tables import datapoint_schema, fixed_width, image_schema, map_table

SCHEMA = datapoint_schema(2)


def batch(schema: pa.Schema = SCHEMA, label: Any = (1, 0)) -> pa.RecordBatch:
    ids = pa.FixedSizeListArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), type=schema.field("image_ids").type)
    columns = [pa.array([0, 1], pa.int32()), pa.array([0, 0], pa.uint8()), ids, pa.array(label, pa.int32())]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def write(path: Path, *batches: pa.RecordBatch) -> Path:
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, batches[0].schema) as writer:
        for each in batches:
            writer.write_batch(each)
    return path


def test_a_table_is_mapped(tmp_path: Path) -> None:
    mapped = map_table(write(tmp_path / "t.arrow", batch()), SCHEMA)
    assert mapped.equals(batch())
    ids = np.frombuffer(fixed_width(mapped.column("image_ids").values), dtype=np.int32)
    assert ids.tolist() == [0, 1, 2, 3]
    pixels = pa.array([b"abcd", b"efgh", b"ijkl"], pa.binary(4))
    assert bytes(fixed_width(pixels[1:])) == b"efghijkl"


def fault_of(path: Path, schema: pa.Schema = SCHEMA) -> str:
    with pytest.raises(StoreError) as caught:
        map_table(path, schema)
    (line,) = caught.value.faults
    assert line.startswith(f"{path}: ")
    return line.removeprefix(f"{path}: ")


def test_an_invalid_table_is_one_line(tmp_path: Path) -> None:
    path = write(tmp_path / "t.arrow", batch(), batch())
    assert fault_of(path) == "must be one record batch (got 2); build it again"
    write(path, batch(label=[1, None]))
    assert fault_of(path) == "must have no nulls (got label); build it again"
    write(path, batch(pa.schema([*list(SCHEMA)[:3], pa.field("label", pa.int32())])))
    columns = "task int32 not null, split uint8 not null, image_ids fixed_size_list<item: int32 not null>[2] not null, "
    assert fault_of(path) == (
        f"must have the columns {columns}label int32 not null (got {columns}label int32); build it again"
    )
    assert fault_of(path, image_schema(4)).startswith(
        "must have the columns pixels fixed_size_binary[4] not null, class int32 not null, split uint8 not null (got "
    )
    path.write_bytes(b"ARROW1")
    assert fault_of(path).startswith("cannot be read as an Arrow IPC file (got ")
    assert fault_of(tmp_path / "none").startswith("cannot be read as an Arrow IPC file (got ")
