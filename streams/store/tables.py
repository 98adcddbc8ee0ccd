"""The two Arrow tables of a task store: their schemas, and memory-mapping of their files."""

from pathlib import Path

import pyarrow as pa

from streams.errors import StoreError, fault

IMAGES = "images.arrow"
DATAPOINTS = "datapoints.arrow"


def image_schema(bytes_per_image: int) -> pa.Schema:
    """Columns of `images.arrow`: pixels (uint8, CHW), class, and pool (0 train, 1 validation, 2 test)."""
    pixels = pa.field("pixels", pa.binary(bytes_per_image), nullable=False)
    return pa.schema(
        [pixels, pa.field("class", pa.int32(), nullable=False), pa.field("split", pa.uint8(), nullable=False)]
    )


def datapoint_schema(images_per_datapoint: int) -> pa.Schema:
    """Columns of `datapoints.arrow`: task, split (0 train, 1 validation, 2 test), image ids, label."""
    ids = pa.list_(pa.field("item", pa.int32(), nullable=False), images_per_datapoint)
    return pa.schema(
        [
            pa.field("task", pa.int32(), nullable=False),
            pa.field("split", pa.uint8(), nullable=False),
            pa.field("image_ids", ids, nullable=False),
            pa.field("label", pa.int32(), nullable=False),
        ]
    )


def map_table(path: Path, schema: pa.Schema) -> pa.RecordBatch:
    """Map an Arrow IPC file, which must be one record batch of this schema, so that its columns are contiguous.

    Raises:
        StoreError: the file is damaged, or has another schema, nulls, or several batches.
    """
    try:
        with pa.memory_map(str(path)) as source, pa.ipc.open_file(source) as reader:
            if not reader.schema.equals(schema):
                raise StoreError(
                    fault(path, f"must have the columns {_short(schema)}", _short(reader.schema), "build it again")
                )
            if reader.num_record_batches != 1:
                raise StoreError(fault(path, "must be one record batch", reader.num_record_batches, "build it again"))
            batch = reader.get_batch(0)
            batch.validate()
            holes = [name for name, column in zip(schema.names, batch.columns, strict=True) if _has_nulls(column)]
            if holes:
                raise StoreError(fault(path, "must have no nulls", ", ".join(holes), "build it again"))
            return batch
    except (OSError, pa.ArrowException) as error:
        raise StoreError(
            fault(path, "cannot be read as an Arrow IPC file", error, "copy or build the store again")
        ) from None


def _has_nulls(column: pa.Array) -> bool:
    inner = column.values if pa.types.is_fixed_size_list(column.type) else column
    return bool(column.null_count or inner.null_count)


def _short(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}{'' if field.nullable else ' not null'}" for field in schema)


def fixed_width(array: pa.Array) -> memoryview:
    """The mapped bytes of a column of fixed width."""
    width = array.type.byte_width if pa.types.is_fixed_size_binary(array.type) else array.type.bit_width // 8
    return memoryview(array.buffers()[-1])[array.offset * width : (array.offset + len(array)) * width]
