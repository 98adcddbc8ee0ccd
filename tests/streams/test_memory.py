"""The memory of a build: a Parquet file of 200,000 pictures of 64x64 needs less than 1.5 GB beside the store."""

import io
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

SIDE = 64
BUILD = """
import json, sys, threading, time
from streams.build import build
from streams.images import SingleImages

peaks = {"RssAnon": 0, "VmHWM": 0}

def watch():
    while True:
        for line in open("/proc/self/status"):
            key, _, value = line.partition(":")
            if key in peaks:
                peaks[key] = max(peaks[key], 1024 * int(value.split()[0]))
        time.sleep(0.02)

threading.Thread(target=watch, daemon=True).start()
store = build(SingleImages(data=sys.argv[1], size=64, tasks=3), [0], sys.argv[2])
time.sleep(0.1)
print(json.dumps({**peaks, "count": store.count, "bytes": (store.path / "images.arrow").stat().st_size}))
"""


def pictures(header: bytes, start: int, count: int) -> pa.RecordBatch:
    """BMP files, which cost no time to write: `header` and noise that begins with the picture's number."""
    noise = np.random.default_rng(start).integers(0, 256, (count, 3 * SIDE * SIDE), dtype=np.uint8)
    noise[:, :4] = np.arange(start, start + count, dtype="<u4")[:, None].view(np.uint8)
    files = np.concatenate([np.tile(np.frombuffer(header, dtype=np.uint8), (count, 1)), noise], axis=1)
    offsets = np.arange(count + 1, dtype=np.int32) * files.shape[1]
    content = pa.BinaryArray.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(files)])
    images = pa.StructArray.from_arrays([content, pa.nulls(count, pa.string())], ["bytes", "path"])
    return pa.record_batch([images, pa.array(np.arange(start, start + count) % 1_000)], ["image", "label"])


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the memory of a process from /proc")
@pytest.mark.parametrize(
    ("count", "rows", "most"),
    [(40_000, 40_000, 0.4e9), (200_000, 1_000, 1.5e9), (200_000, 200_000, 1.5e9)],
    ids=["a fifth", "small row groups", "one row group"],
)
def test_a_large_parquet_file_is_built_within_its_memory(
    count: int, rows: int, most: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOML_CACHE", str(tmp_path / "cache"))
    file = io.BytesIO()
    Image.new("RGB", (SIDE, SIDE)).save(file, format="BMP")
    header = file.getvalue()[: -3 * SIDE * SIDE]
    batches = (pictures(header, start, 1_000) for start in range(0, count, 1_000))
    schema = pictures(header, 0, 1).schema
    with pq.ParquetWriter(tmp_path / "a.parquet", schema, compression="none", use_dictionary=False) as writer:
        for table in (
            [pa.Table.from_batches(batches)] if rows == count else map(pa.Table.from_batches, ([b] for b in batches))
        ):
            writer.write_table(table, rows)
    assert pq.ParquetFile(tmp_path / "a.parquet").num_row_groups == count // rows
    command = [sys.executable, "-c", BUILD, str(tmp_path / "a.parquet"), str(tmp_path / "store")]
    process = subprocess.run(command, capture_output=True, text=True, timeout=850)
    assert process.returncode == 0, process.stderr
    result = json.loads(process.stdout.splitlines()[-1])
    print(result)
    assert result["count"] == count
    assert result["bytes"] >= count * 3 * SIDE * SIDE  # 2.46 GB for 200,000
    assert result["RssAnon"] < most  # what the system cannot write back to a file
    assert result["VmHWM"] - result["bytes"] < most  # all that was mapped at one time, files included
