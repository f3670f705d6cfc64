"""Make the points that a box is fitted to from a published table of nccl-tests.

    make_points.py TABLE SOURCE [RANKS ...] > points/NAME.json

TABLE is an nccl_perf.parquet of ai-dynamo/aiconfigurator (times of half precision; needs pyarrow), or
the text that nccl-tests prints (times out of place; RANKS has one number of GPUs for each table in
the text). Of the sizes every other one is kept, 2 KiB, 8 KiB, 32 KiB and so on: those between,
4 KiB, 16 KiB and so on, are for tests/replay/published.json, and no box may be fitted to them. "%"
in SOURCE stands for the collective.
"""
import json
import re
import sys

SIZES = [2 << 10 << 2 * i for i in range(10)]
OPS = {"all_gather": "all_gather", "reduce_scatter": "reduce_scatter", "all_reduce": "all_reduce",
       "alltoall": "all_to_all"}


def read_parquet(path, ranks):
    """[op, ranks, {bytes: us}]; the file counts elements and milliseconds."""
    import pyarrow.parquet
    found = {}
    for row in pyarrow.parquet.read_table(path).to_pylist():
        if row["nccl_dtype"] == "half" and (not ranks or row["num_gpus"] in ranks):
            key = OPS[row["op_name"]], row["num_gpus"]
            found.setdefault(key, {})[2 * row["message_size"]] = round(1000 * row["latency"], 2)
    return [(op, count, times) for (op, count), times in found.items()]


def read_text(path, ranks):
    """Tables of all_reduce_perf, each of which begins with its smallest size."""
    tables, last = [], sys.maxsize
    with open(path, encoding="utf-8") as file:
        for line in file:
            row = re.match(r"\s*(\d+)\s+\d+\s+float\s+sum\s+-1\s+([0-9.]+)", line)
            if row:
                if int(row[1]) <= last:
                    tables.append({})
                last = int(row[1])
                tables[-1][last] = float(row[2])
    return [("all_reduce", count, times) for count, times in zip(ranks, tables, strict=True)]


def main():
    path, source, ranks = sys.argv[1], sys.argv[2], [int(one) for one in sys.argv[3:]]
    tables = (read_parquet if path.endswith(".parquet") else read_text)(path, ranks)
    lines = []
    for op, count, times in sorted(tables, key=lambda one: one[:2]):
        points = [[size, times[size]] for size in SIZES if size in times]
        lines.append(f'    {{"op": "{op}", "ranks": {count},\n     "points": {json.dumps(points)}}}')
    print(f'{{\n  "source": {json.dumps(source)},\n  "series": [\n' + ",\n".join(lines) + "\n  ]\n}")


if __name__ == "__main__":
    main()
