"""The file of scores that `arht score` writes: one row per query, and the record of the run."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from arht.errors import ArhtError, InputError

__all__ = ["SCHEMA", "SUFFIXES", "Scores", "format_of", "read_scores", "write_scores"]

SCHEMA = 1
"""Version of the layout. A reader refuses files of a later one."""

SUFFIXES = (".parquet", ".csv", ".jsonl")

INTEGERS = ("row", "outcome", "label", "nearest_class")
TEXT = ("file", "id")


@dataclass(frozen=True, slots=True, eq=False)
class Scores:
    """A file of scores."""

    record: dict[str, Any]
    """The run: settings, versions, detector, guarantee, decision, audit."""
    columns: dict[str, npt.NDArray[Any]]
    """Name -> [B], in the order of the file; a missing number is NaN."""

    def __len__(self) -> int:
        return len(self.columns["row"])


def format_of(path: str | os.PathLike[str]) -> str:
    """.parquet, .csv or .jsonl."""
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise InputError(
            f"scores: the suffix must be one of {', '.join(SUFFIXES)}; got {os.fspath(path)}. "
            "It decides the format; write for instance scores.parquet."
        )
    return suffix


# writing --------------------------------------------------------------------------------------------------------


def write_scores(path: str | os.PathLike[str], schema: Any, batches: Iterable[Any], record: Mapping[str, Any]) -> None:
    """Write record batches of arrow, one after the other. The file appears whole, under another name first.

    The record may be changed until the last batch has been given.
    """
    file, suffix = Path(path), format_of(path)
    temporary = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as opened:
            _WRITERS[suffix](opened, schema, batches, record)
        if suffix != ".parquet":
            beside = _beside(file)
            hidden = beside.with_name(f".{beside.name}.{os.getpid()}.tmp")
            hidden.write_text(json.dumps(record, indent=1, allow_nan=False) + "\n", encoding="utf-8")
            hidden.replace(beside)
        temporary.replace(file)
    except OSError as error:
        raise InputError(
            f"scores: needs a file that can be written; got {file}: {error.strerror}. "
            "Check its folder, its permissions and the free space."
        ) from None
    finally:
        temporary.unlink(missing_ok=True)


def _beside(file: Path) -> Path:
    return file.with_name(file.name + ".json")


def _write_parquet(opened: IO[bytes], schema: Any, batches: Iterable[Any], record: Mapping[str, Any]) -> None:
    import pyarrow.parquet as pq

    # few different values in these; the others would only fill a dictionary in vain
    few = [name for name in schema.names if name not in ("row", "id", "statistic", "score")]
    with pq.ParquetWriter(
        opened, schema, compression="lz4", use_dictionary=few, write_statistics=False, write_page_checksum=True
    ) as writer:
        for batch in batches:
            writer.write_batch(batch)
        writer.add_key_value_metadata({"arht": json.dumps(record, allow_nan=False)})


def _write_csv(opened: IO[bytes], schema: Any, batches: Iterable[Any], record: Mapping[str, Any]) -> None:
    import pyarrow as pa
    import pyarrow.csv

    plain = pa.schema([(field.name, _plain_type(field.type)) for field in schema])
    options = pyarrow.csv.WriteOptions(quoting_style="needed")
    with pyarrow.csv.CSVWriter(opened, plain, write_options=options) as writer:
        for batch in batches:
            writer.write_batch(pa.record_batch([_without_nan(c) for c in batch.columns], schema=plain))


def _plain_type(kind: Any) -> Any:
    import pyarrow as pa

    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _without_nan(column: Any) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_dictionary(column.type):
        return column.dictionary_decode()
    if not pa.types.is_floating(column.type):
        return column
    return pc.if_else(pc.is_nan(column), pa.scalar(None, column.type), column)


def _write_jsonl(opened: IO[bytes], schema: Any, batches: Iterable[Any], record: Mapping[str, Any]) -> None:
    for batch in batches:
        columns = [_without_nan(column).to_pylist() for column in batch.columns]
        for row in zip(*columns, strict=True):
            line = json.dumps({name: _finite(value) for name, value in zip(schema.names, row, strict=True)})
            opened.write(line.encode() + b"\n")


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and value in (float("inf"), float("-inf")) else value


_WRITERS: dict[str, Callable[..., None]] = {".parquet": _write_parquet, ".csv": _write_csv, ".jsonl": _write_jsonl}


# reading --------------------------------------------------------------------------------------------------------


def read_scores(path: str | os.PathLike[str]) -> Scores:
    """The scores and the run record in a parquet, csv or jsonl file of `arht score`."""
    file, suffix = Path(path), format_of(path)
    if not file.is_file():
        raise InputError(f"scores: needs an existing file; got {file}. Check the path and the working folder.")
    with _readable(file):
        table, text = _table(file, suffix)
        record = json.loads(text)
        if not isinstance(record, dict) or not isinstance(record.get("schema"), int):
            raise ValueError("its record is not one of arht score")
        if record["schema"] > SCHEMA:
            raise InputError(
                f"scores: {file} has schema {record['schema']}; this arht reads schemas up to {SCHEMA}. Update arht."
            )
        columns = {name: _array(name, table.column(name).combine_chunks()) for name in table.column_names}
        missing = {"row", "statistic", "score", "pvalue", "ridge", "outcome", "adjusted_pvalue", "rejected"} - {
            *columns
        }
        if missing:
            raise ValueError(f"it lacks the columns {', '.join(sorted(missing))}")
    return Scores(record, columns)


@contextmanager
def _readable(file: Path) -> Iterator[None]:
    try:
        yield
    except ArhtError:
        raise
    except Exception as error:  # the readers raise whatever a damaged byte leads them to
        reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        raise InputError(
            f"scores: {file} must be a file that arht score wrote; got: {reason[:160]}. "
            "It is cut short, damaged or of another kind; score the queries again."
        ) from None


def _table(file: Path, suffix: str) -> tuple[Any, str]:
    import pyarrow as pa

    if suffix == ".parquet":
        import pyarrow.parquet as pq

        with pq.ParquetFile(file, page_checksum_verification=True) as opened:
            text = (opened.schema_arrow.metadata or {}).get(b"arht") or (opened.metadata.metadata or {}).get(b"arht")
            if text is None:
                raise ValueError("a parquet file without the record of a run")
            return opened.read(), text.decode()
    beside = _beside(file)
    if not beside.is_file():
        raise InputError(
            f"scores: {file} needs its record beside it, {beside}, which is not there. Keep them together."
        )
    text = beside.read_text(encoding="utf-8")
    if suffix == ".csv":
        import pyarrow.csv

        with file.open(newline="", encoding="utf-8") as opened_text:
            names = opened_text.readline().replace('"', "").strip().split(",")
        kinds = {
            name: pa.string() if name in TEXT else pa.int64() if name in INTEGERS else pa.float64()
            for name in names
            if name != "rejected"
        }
        convert = pyarrow.csv.ConvertOptions(column_types={**kinds, "rejected": pa.bool_()}, strings_can_be_null=False)
        return pyarrow.csv.read_csv(file, convert_options=convert), text
    with file.open("rb") as opened_bytes:
        return pa.Table.from_pylist([json.loads(line) for line in opened_bytes]), text


def _array(name: str, column: Any) -> npt.NDArray[Any]:
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_null(column.type) or pa.types.is_floating(column.type):
        return np.array(column.cast(pa.float64()).to_numpy(zero_copy_only=False))
    with warnings.catch_warnings():
        return np.array(column.to_numpy(zero_copy_only=False))
